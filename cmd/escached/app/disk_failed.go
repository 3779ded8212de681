package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
)

const (
	// primaryWaits bounds the handler on a Primary. drbdadm ends a handler's wait after ten minutes.
	primaryWaits = 9 * time.Minute
	// leaveTimeout bounds what a Secondary does.
	leaveTimeout = time.Minute
)

// diskFailure is one call of DRBD's local-io-error handler.
type diskFailure struct {
	pool, image, peer string
	minor             int
	// detached is set in the process that the handler starts on a Secondary and does not wait for.
	detached bool
}

func diskFailedCommand(f *flags) *cobra.Command {
	d := &diskFailure{}
	cmd := &cobra.Command{
		Use: "disk-failed", Args: cobra.NoArgs,
		Short: "DRBD's handler: the disk of a replica has failed; mark that copy, and put it on record as outdated",
		RunE:  func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context(), f) },
	}
	cmd.Flags().StringVar(&d.pool, "pool", "", "the volume's pool")
	cmd.Flags().StringVar(&d.image, "image", "", "the volume's image")
	cmd.Flags().StringVar(&d.peer, "peer", "", "the host with the other copy")
	cmd.Flags().IntVar(&d.minor, "minor", -1, "the replica's DRBD minor")
	cmd.Flags().BoolVar(&d.detached, "detached", false, "the handler has marked the copy and does not wait")
	return cmd
}

// run marks the copy first of all. It reads nothing from LVM, whose disk has failed. The kernel's
// worker waits for the handler and sends nothing to the peer meanwhile. That keeps a Primary from
// acknowledging writes. But leaving the peer needs the worker, so on a Secondary another process does
// the rest.
func (d *diskFailure) run(ctx context.Context, f *flags) error {
	cfg, err := f.config()
	log := slog.New(slog.NewTextHandler(handlerLog(cfg.RunDir, "disk-failed.log"), nil))
	if err != nil {
		log.Error("disk-failed: nothing is done about the failed disk", "error", err)
		return err
	}
	name := os.Getenv("DRBD_RESOURCE")
	log = log.With("resource", name)
	marks := faileddisk.In(cfg.StateDir)
	if !d.detached {
		if err := marks.Set(name, faileddisk.Failed); err != nil {
			log.Error("disk-failed: the copy could not be marked", "error", err) // it is reported all the same
		}
	}
	if !d.detached && !isPrimary(d.minor) {
		return d.detach(f)
	}
	files := escacheclient.TLSFiles{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, CA: cfg.TLS.ClientCA}
	arbiter, err := escacheclient.NewArbiter(cfg.Arbiter, files, cfg.ArbiterTimeout)
	if err != nil {
		log.Error("disk-failed: the arbiter is not told", "error", err)
		return err
	}
	report := faileddisk.Reporter{Marks: marks, Records: arbiter, LivesOnPeer: func() bool { return livesOnPeer(d.minor) }, Log: log}
	replica := faileddisk.Replica{Name: name, Request: d.request(cfg)}
	if d.detached {
		ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
		defer cancel()
		control := drbd.NewControl(command.NewExec(), drbd.Files{Dir: cfg.DRBD.ResourceDir})
		return report.ReportOrLeave(ctx, replica, control.Leave)
	}
	ctx, cancel := context.WithTimeout(ctx, primaryWaits)
	defer cancel()
	return report.ReportUntilHeard(ctx, replica)
}

func (d *diskFailure) request(cfg escached.Config) escache.OutdateSelfRequest {
	return escache.OutdateSelfRequest{VolumeRef: escache.VolumeRef{Pool: d.pool, Image: d.image}, Node: cfg.Node, Peer: d.peer}
}

// detach starts this command once more, in a session of its own, and does not wait for it.
func (d *diskFailure) detach(f *flags) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("path of this program: %w", err)
	}
	//nolint:noctx // it outlives this process
	cmd := exec.Command(self, "disk-failed", "--detached", "--config", f.path, "--pool", d.pool, "--image", d.image, "--peer", d.peer,
		"--minor", fmt.Sprint(d.minor))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("report the failed disk: %w", err)
	}
	return nil
}

// isPrimary reports whether a DRBD device is Primary. If that cannot be read, it is taken for one:
// the handler then waits, and leaves no peer.
func isPrimary(minor int) bool {
	table, err := drbd.Proc{Path: "/proc/drbd"}.Read()
	return err != nil || table.Devices[minor].Role == drbd.Primary
}

// livesOnPeer reports whether a device has lost its own disk and its peer's copy is current.
func livesOnPeer(minor int) bool {
	table, err := drbd.Proc{Path: "/proc/drbd"}.Read()
	st := table.Devices[minor]
	return err == nil && st.Disk.Lost() && st.Connection == drbd.Connected && st.PeerDisk == drbd.UpToDate
}

func isUpToDate(minor int) bool {
	table, err := drbd.Proc{Path: "/proc/drbd"}.Read()
	return err == nil && table.Devices[minor].Disk == drbd.UpToDate
}

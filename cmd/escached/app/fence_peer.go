package app

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/fencepeer"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// fenceTimeout bounds the handler. The kernel freezes I/O until the handler ends.
const fenceTimeout = 30 * time.Second

// fencePeer runs DRBD's fence-peer handler and returns its exit code. The kernel starts it through
// drbdadm, which passes the resource in the environment.
func fencePeer(ctx context.Context, f *flags) int {
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	cfg, err := f.config()
	log := slog.New(slog.NewTextHandler(handlerLog(cfg.RunDir, "fence-peer.log"), nil))
	if err != nil {
		log.Error("fence-peer: refused, I/O stays frozen", "error", err)
		return fencepeer.Refused
	}
	files := escacheclient.TLSFiles{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, CA: cfg.TLS.ClientCA}
	arbiter, err := escacheclient.NewArbiter(cfg.Arbiter, files, cfg.ArbiterTimeout)
	if err != nil {
		log.Error("fence-peer: refused, I/O stays frozen", "error", err)
		return fencepeer.Refused
	}
	store := lvm.New(cfg.VolumeGroup, command.NewExec())
	resource := os.Getenv("DRBD_RESOURCE")
	return fencepeer.Run(ctx, cfg, store, arbiter, resource, func(minor int) bool {
		// A disk that is UpToDate without a link was so with it, since this host started: the copy was
		// current after the mark was set.
		return faileddisk.In(cfg.StateDir).Get(resource) != faileddisk.Sound && !isUpToDate(minor)
	}, log)
}

// handlerLog returns a writer to the kernel's log, beside DRBD's own lines, and to a file that has
// these lines only. A handler has no other output.
func handlerLog(dir, name string) io.Writer {
	var out []io.Writer
	if kmsg, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0); err == nil {
		out = append(out, kmsg)
	}
	if file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		out = append(out, file)
	}
	return everyone(out)
}

// everyone writes to all its writers and ignores their errors.
type everyone []io.Writer

func (e everyone) Write(p []byte) (int, error) {
	for _, w := range e {
		_, _ = w.Write(p)
	}
	return len(p), nil
}

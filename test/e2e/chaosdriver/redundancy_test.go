//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// TestTimesOfRedundancy prints how long a volume has one copy after the disk of the other one has died, and how fast the
// third host's copy is made, against what the network between the two hosts carries, alone and from disk to disk.
func TestTimesOfRedundancy(t *testing.T) {
	w := open(t)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "\nseconds since the disk died\ncache\ton record\tin Ceph\tcopy begun\ttwo copies\tcopied MiB/s\tlink MiB/s\tratio\tdisk to disk MiB/s\tratio\t")
	for _, size := range []string{"64Mi", "1Gi"} {
		t.Run(size, func(t *testing.T) {
			t.Cleanup(func() { w.cleanUp(t) })
			s := w.newScene(t)
			t.Cleanup(func() { s.watch.end(t) })
			s.class = class + "-" + strings.ToLower(size)
			w.apply(t, storageClass(s.class, size))
			s.open()
			s.timeOfRedundancy(out, size)
		})
	}
	_ = out.Flush()
}

func (s *scene) timeOfRedundancy(out io.Writer, size string) {
	s.repairs("10m")
	s.write()
	s.rest()
	holder, third := s.holder, s.third()
	link, disks := s.linkRate(holder, third, "", ""), s.rateOfDisks(holder, third)
	var noticed, inCeph, begun time.Duration
	var left []int64
	var at []time.Time
	dead := s.partner()
	s.fault()
	s.lab.FailDisk(s, dead)
	s.check.Write(s, holder, s.device).Stop(s) // DRBD notices the disk by a write
	s.recordIs("has its second copy on "+third.Name, func(v *cacheVolume) error {
		since := time.Since(s.begun)
		if noticed == 0 && v.Status.IsOutdated(dead.Name) {
			noticed = since
		}
		if r := v.Status.Repair; inCeph == 0 && r != nil && r.Substitute != "" { // which comes once all is in Ceph
			inCeph = since
		}
		if status, err := holder.API.VolumeStatus(s.Context(), s.image.VolumeRef); err == nil && status.Resync != nil {
			if begun == 0 {
				begun = since
			}
			left, at = append(left, status.Resync.LeftBytes), append(at, time.Now())
		}
		if !v.Spec.HasReplica(third.Name) || len(v.Status.Outdated) > 0 || v.Status.Repair != nil {
			return fmt.Errorf("replicas %q, outdated %q, repair %+v", v.Spec.Replicas, v.Status.Outdated, v.Status.Repair)
		}
		return nil
	})
	whole := time.Since(s.begun)
	rate, ofLink, ofDisks := "too short", "", ""
	if last := len(left) - 1; last > 0 && left[0] > left[last] {
		copied := float64(left[0]-left[last]) / at[last].Sub(at[0]).Seconds()
		rate, ofLink, ofDisks = fmt.Sprintf("%.1f", copied/mib), fmt.Sprintf("%.2f", copied/link), fmt.Sprintf("%.2f", copied/disks)
	}
	fmt.Fprintf(out, "%s\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t%.1f\t%s\t%.1f\t%s\t\n", size, noticed.Seconds(), inCeph.Seconds(), begun.Seconds(), whole.Seconds(),
		rate, link/mib, ofLink, disks/mib, ofDisks)
	s.whole()
	s.finish()
}

const mib = 1 << 20

// rateOfDisks is linkRate from a new logical volume to another one.
func (s *scene) rateOfDisks(from, to *labtest.Host) float64 {
	s.Helper()
	const name, disk = "escache/scratch", "/dev/escache/scratch"
	for _, h := range []*labtest.Host{from, to} {
		h.Shell(s, "lvcreate --yes --size 128m --name "+name)
		defer h.Shell(s, "lvremove --yes "+name)
	}
	return s.linkRate(from, to, " --from "+disk, " --to "+disk)
}

// linkRate returns how many bytes in a second one host can send to another over the network of the replicas.
func (s *scene) linkRate(from, to *labtest.Host, source, target string) float64 {
	s.Helper()
	const port = "7999"
	ctx, cancel := context.WithTimeout(s.Context(), commandTime)
	defer cancel()
	received := make(chan error, 1)
	go func() {
		_, err := to.Try(ctx, nil, "sh", "-c", "blockcheck bench receive "+net.JoinHostPort(to.Address, port)+target)
		received <- err
	}()
	labtest.WaitFor(s, to.Name+" listens", commandTime, func(ctx context.Context) error {
		_, err := to.Try(ctx, nil, "sh", "-c", "grep -qi ':1F3F .* 0A ' /proc/net/tcp /proc/net/tcp6") // 7999, LISTEN
		return err
	})
	rate, err := strconv.ParseFloat(strings.TrimSpace(from.Shell(s, "blockcheck bench send "+net.JoinHostPort(to.Address, port)+source)), 64)
	check(s, err)
	check(s, <-received)
	return rate
}

//go:build e2e

package host

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

// supersededIsGivenUp: n1 is cut off in the middle of its writes and flushes, n2 takes the volume
// over, and n1 comes back to the network with a frozen device, open, and verbs stuck in it. Nothing
// but abandon gets rid of that, and only with proof.
func supersededIsGivenUp(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	before := v.Connect(t, n1)
	acks := n1.Fill(t, before.Device, 0, 4*mib)
	// One of several writes is usually under way in a way that the disk of n1 has it and n2 does not.
	var writers []*labtest.Writer
	for i := range int64(4) {
		writers = append(writers, n1.StartWriter(t, before.Device, labtest.Writes{Offset: (4 + i) * 2 * mib, Span: 2 * mib}))
	}
	for _, w := range writers {
		w.WaitForMore(t, 10, time.Minute)
	}

	v.WaitForPeer(t, n1)
	lab.Cut(t, n1)
	v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	epoch := v.Epoch()
	refusedAbandon(t, v, n1, epoch+1, "cut off from the arbiter")
	lab.Blocklist(t, before.ClientAddress)
	after := v.Connect(t, n2)
	frozenAt := map[*labtest.Writer]int{}
	for _, w := range writers {
		acks = append(acks, w.Acks()...)
		frozenAt[w] = w.Count()
	}
	n2.Verify(t, after.Device, acks)
	refusedAbandon(t, v, n1, v.Epoch(), "still cut off, but taken over")
	more := n2.Fill(t, after.Device, 16*mib, 2*mib)
	n2.Verify(t, after.Device, acks)
	acks = append(acks, more...)

	lab.Heal(t)
	v.WaitForStatus(t, n1, "stays frozen", noticeLimit, frozen)
	refusedAbandon(t, v, n1, epoch, "with its own epoch")
	// The writers have the device open: they are killed, and then the device can go.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begin := time.Now()
	labtest.WaitFor(t, "n1 gives the device up", 2*time.Minute, func(context.Context) error {
		err := n1.API.Abandon(ctx, v.VolumeRef, v.Epoch())
		if code := labtest.CodeOf(err); err != nil && code != escache.CodeDeviceOpen && code != escache.CodeBusy {
			t.Fatalf("abandon: %v", err)
		}
		return err
	})
	t.Logf("given up after %s", time.Since(begin))
	for _, w := range writers {
		if late := len(w.Lost(t)) - frozenAt[w]; late > 0 {
			t.Errorf("%d writes that n2 does not have were acknowledged when n1 gave the device up", late)
		}
	}
	for range 2 { // repeated, it has nothing to do
		if err := n1.API.Abandon(ctx, v.VolumeRef, v.Epoch()); err != nil {
			t.Errorf("abandon once more: %v", err)
		}
	}
	status := v.Status(t, n1)
	if status.Role == escache.RolePrimary || status.Device != "" || status.ClientAddress != "" || status.State == escache.StateConnected {
		t.Errorf("what is left on n1: %+v", status)
	}

	// The new holder brings the old one's copy up to date: a repeated PUT is all that may be
	// needed.
	v.LayOn(t, n2)
	v.LayOn(t, n1)
	took := v.WaitForPeer(t, n2)
	t.Logf("redundant again %s later", took)
	n2.Verify(t, after.Device, acks)
	v.Flush(t, n2)
	v.Stop(t, n2)
	n1.Verify(t, v.Connect(t, n1).Device, acks)
	v.Remove(t, n1)
}

// heldIsGivenUp: n1 loses its network while a mounted volume is held for a snapshot, and n2 takes the volume over. What waits in the
// hold on n1 must end, so that the filesystem can be unmounted without a reboot.
func heldIsGivenUp(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	before := v.Connect(t, n1)
	const at = "/run/held"
	n1.Shell(t, fmt.Sprintf("%s %s && mkdir -p %s && mount -t ext4 %s %s && echo early >%s/file && sync",
		mkfs["ext4"], before.Device, at, before.Device, at, at))
	v.WaitForPeer(t, n1)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if _, err := n1.API.Hold(ctx, escache.HoldRequest{VolumeRef: v.VolumeRef, MaxSeconds: 60, Pause: true}); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := n1.Try(ctx, nil, "sh", "-c", "dd if=/dev/zero of="+at+"/late bs=4k count=1 conv=fsync 2>/dev/null")
		written <- err
	}()
	lab.Cut(t, n1)
	lab.Blocklist(t, before.ClientAddress)
	after := v.Connect(t, n2)
	lab.Heal(t)
	abandon := func(context.Context) error { return n1.API.Abandon(ctx, v.VolumeRef, v.Epoch()) }
	labtest.WaitFor(t, "n1 makes the I/O fail", 2*time.Minute, func(ctx context.Context) error {
		if err := abandon(ctx); labtest.CodeOf(err) != escache.CodeDeviceOpen {
			return fmt.Errorf("abandon: %v", err) //nolint:errorlint // it may be nil
		}
		return nil
	})
	if err := <-written; err == nil {
		t.Error("a write was acknowledged that waited in the hold")
	}
	n1.Shell(t, "umount "+at)
	labtest.WaitFor(t, "n1 gives the device up", 2*time.Minute, abandon)
	if s := v.Status(t, n1); s.Role == escache.RolePrimary || s.Device != "" || s.HeldUntil != nil {
		t.Errorf("what is left on n1: %+v", s)
	}
	v.WaitForPeer(t, n2)
	if got := n2.Shell(t, fmt.Sprintf("mkdir -p %s && mount -t ext4 %s %s && cat %s/file && umount %s",
		at, after.Device, at, at, at)); got != "early\n" && got != "early" {
		t.Errorf("n2 reads %q", got)
	}
	v.Remove(t, n2)
}

func refusedAbandon(t *testing.T, v *labtest.Volume, h *labtest.Host, epoch int64, when string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.API.Abandon(ctx, v.VolumeRef, epoch); labtest.CodeOf(err) != escache.CodeNotSuperseded {
		t.Fatalf("abandon %s: %v", when, err)
	}
	if s := v.Status(t, h); s.Device == "" || !s.IOSuspended {
		t.Fatalf("a refused abandon %s left %+v", when, s)
	}
}

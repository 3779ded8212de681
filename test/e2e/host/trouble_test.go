//go:build e2e

package host

import (
	"context"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

func flushSurvivesStalledCeph(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	device := v.Connect(t, n1).Device
	acks := n1.Fill(t, device, 0, 8*mib)

	lab.StallCeph(t)
	const timeout = 60
	type answer struct {
		flush *escache.FlushResponse
		err   error
		took  time.Duration
	}
	answers := make(chan answer, 1)
	go func() {
		begin := time.Now()
		flush, err := n1.API.Flush(t.Context(), escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: timeout})
		answers <- answer{flush, err, time.Since(begin)}
	}()
	v.WaitForStatus(t, n1, "is flushing", noticeLimit, func(s escache.VolumeStatus) bool { return s.State == escache.StateFlushing })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if code := labtest.CodeOf(n1.API.Stop(ctx, escache.StopRequest{VolumeRef: v.VolumeRef})); code != escache.CodeBusy {
		t.Errorf("stop during the flush: %q, want busy", code)
	}
	got := <-answers
	if got.err != nil || got.flush.Clean || got.flush.DirtyBytes <= 0 || got.flush.DirtyBytes > 9*mib {
		t.Errorf("flush with Ceph standing still: %+v, %v", got.flush, got.err)
	}
	t.Logf("a flush of %d s without Ceph answered after %s: %+v", timeout, got.took, got.flush)
	if got.took > timeout*time.Second+time.Minute {
		t.Errorf("it took %s", got.took)
	}
	// The cache still takes writes: that is what it is for.
	acks = append(acks, n1.Fill(t, device, 8*mib, mib)...)
	status := v.Status(t, n1)
	if status.DirtyBytes == nil || *status.DirtyBytes <= 0 {
		t.Errorf("status during the stall: %+v", status)
	}
	lab.ResumeCeph(t)
	v.Flush(t, n1)
	v.Stop(t, n1)
	alone, unmap := lab.Hosts[2].MapAlone(t, v)
	lab.Hosts[2].Verify(t, alone, acks)
	unmap()
	v.Remove(t, nil)
}

func failedDiskIsNotNoticed(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v, device, writer := written(t, lab, n1)

	lab.FailDisk(t, n1)
	v.WaitForStatus(t, n1, "runs without its disk", noticeLimit, func(s escache.VolumeStatus) bool { return s.DiskState == "Diskless" })
	// The other copy is the only one, and stays whatever the caller says.
	if err := lab.Hosts[1].API.DiscardReplica(t.Context(), v.VolumeRef, v.Epoch()); labtest.CodeOf(err) != escache.CodeConnected {
		t.Fatalf("the only copy is discarded: %v", err)
	}
	writer.WaitForMore(t, 20, time.Minute)
	acks := writer.Stop(t)
	n1.Verify(t, device, acks)
	v.Flush(t, n1)
	v.Stop(t, n1)

	// The disk is itself again after a reboot; what it holds is old.
	lab.PowerOff(t, n1)
	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, lab.Hosts[1])
	n1.Verify(t, v.Connect(t, n1).Device, acks)
	v.Remove(t, n1)
}

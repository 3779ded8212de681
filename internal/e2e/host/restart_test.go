//go:build e2e

package host

import (
	"reflect"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// restartIsNotNoticed kills escached under a writer again and again. Its start costs CPU on an emulated host with one core, and that is all it may
// cost: in the same run the writer is measured while a process of the same weight starts instead.
func restartIsNotNoticed(t *testing.T, lab *labtest.Lab) {
	const restarts = 3
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	device := v.Connect(t, n1).Device
	writer := n1.StartWriter(t, device, labtest.Writes{Span: 4 * mib})
	writer.WaitForMore(t, 20, time.Minute)
	before := v.Status(t, n1)

	mark := writer.Count()
	for range restarts {
		// The reports of LVM are what a starting escached mostly waits for.
		n1.Shell(t, "lvs -o+tags >/dev/null; dmsetup table >/dev/null; drbdadm dump all >/dev/null")
		writer.WaitForMore(t, 20, time.Minute)
	}
	without := writer.Acks()[mark:].Slowest()

	mark = writer.Count()
	for range restarts {
		took := n1.KillService(t)
		t.Logf("escached was back %s after SIGKILL", took)
		writer.WaitForMore(t, 20, time.Minute)
	}
	with := writer.Acks()[mark:].Slowest()
	t.Logf("slowest write: %s without a restart, %s with", without, with)
	// Far below any freeze of DRBD (1.5 s and more), above what a busy machine does to either of the two.
	if with > 4*without+500*time.Millisecond {
		t.Errorf("a restart stalls writes for %s; without it the slowest took %s", with, without)
	}

	after := v.Status(t, n1)
	before.DirtyBytes, after.DirtyBytes = nil, nil
	if !reflect.DeepEqual(before, after) {
		t.Errorf("after the restart: %+v, before: %+v", after, before)
	}
	acks := writer.Stop(t)
	n1.Verify(t, device, acks)
	v.Remove(t, n1)
}

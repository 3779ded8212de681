//go:build e2e

package host

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// restartIsNotNoticed kills escached under a writer again and again. Its start costs CPU on an
// emulated host with one core, and that is all it may cost: in the same run the writer is measured
// while other commands of the same weight run. A stall that a restart causes is there at each
// restart, and one that a busy machine causes is not, so medians are compared.
func restartIsNotNoticed(t *testing.T, lab *labtest.Lab) {
	const restarts = 5
	n1 := lab.Hosts[0]
	v, device, writer := written(t, lab, n1)
	v.WaitForPeer(t, n1)
	before := v.Status(t, n1)

	// The reports of LVM are what a starting escached mostly waits for.
	without := slowest(t, writer, restarts, func() {
		n1.Shell(t, "lvs -o+tags >/dev/null; dmsetup table >/dev/null; drbdadm dump all >/dev/null")
	})
	with := slowest(t, writer, restarts, func() { t.Logf("escached was back %s after SIGKILL", n1.KillService(t)) })
	t.Logf("slowest write: %s without a restart, %s with (medians of %d)", without, with, restarts)
	// A freeze of DRBD lasts 1.5 s and more.
	if with > 3*without+300*time.Millisecond {
		t.Errorf("a restart stalls writes for %s; without it the slowest takes %s", with, without)
	}

	v.WaitForPeer(t, n1)
	after := v.Status(t, n1)
	before.DirtyBytes, after.DirtyBytes = nil, nil
	if !reflect.DeepEqual(before, after) {
		t.Errorf("after the restart: %+v, before: %+v", after, before)
	}
	acks := writer.Stop(t)
	n1.Verify(t, device, acks)
	v.Remove(t, n1)
}

// slowest does something to a host again and again, and returns the median of how long the slowest
// write took each time.
func slowest(t *testing.T, writer *labtest.Writer, times int, do func()) time.Duration {
	t.Helper()
	var each []time.Duration
	for range times {
		mark := writer.Count()
		do()
		writer.WaitForMore(t, 20, time.Minute)
		each = append(each, writer.Acks()[mark:].Slowest())
	}
	slices.Sort(each)
	return each[times/2]
}

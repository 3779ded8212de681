package engine

import (
	"math"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// written is a standby to which a Primary writes whose own disk is like this.
func written(disk escache.DiskState) drbd.Status {
	st := linked(drbd.Connected, drbd.UpToDate)
	st.PeerRole, st.PeerDisk = drbd.Primary, disk
	return st
}

// standbyOf is a host with a clean standby of a volume that its peer has connected.
func standbyOf(t *testing.T, peerDisk escache.DiskState) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.minors[putReq.Minor] = written(peerDisk)
	return w, e
}

func untouched(t *testing.T, w *world, e *Engine) {
	t.Helper()
	v, ok := e.Volumes.Get(volume.NameOf(ref))
	if _, up := w.minors[putReq.Minor]; !ok || !up || v.Phase != volume.Ready || len(w.lvs) != 1 {
		t.Errorf("the only copy is gone, or half gone: phase %q, left %q", v.Phase, w.left())
	}
}

// TestTheOnlyCopyOfARunningVolumeIsNotRemoved: the disk of the host that has the device has failed, or is
// being filled from here. What that host acknowledges is here and nowhere else, whatever the record says: a
// record that was set back within the attachment has the same epoch.
func TestTheOnlyCopyOfARunningVolumeIsNotRemoved(t *testing.T) {
	for _, disk := range []escache.DiskState{drbd.Diskless, escache.DiskFailed, drbd.Inconsistent, drbd.Outdated} {
		for what, discard := range map[string]*int64{"clean": nil, "discarded": new(int64(math.MaxInt64))} {
			t.Run(string(disk)+" "+what, func(t *testing.T) {
				w, e := standbyOf(t, disk)
				if err := e.DeleteReplica(t.Context(), ref, discard); code(err) != escache.CodeConnected {
					t.Errorf("got %v", err)
				}
				untouched(t, w, e)
			})
		}
	}
}

// The host that has the device has everything, so another copy of it may go.
func TestACopyBesideARunningVolumeIsRemoved(t *testing.T) {
	w, e := standbyOf(t, drbd.UpToDate)
	if err := e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64))); err != nil || len(w.left()) > 0 {
		t.Errorf("error %v, left %q", err, w.left())
	}
}

// TestACopyThatBecomesTheOnlyOneIsKept: the peer's disk fails while the copy is being removed, at any moment
// before the last look at it.
func TestACopyThatBecomesTheOnlyOneIsKept(t *testing.T) {
	w, e := standbyOf(t, drbd.UpToDate)
	looks := 0
	w.drbdRead = func() {
		if !slices.Contains(w.steps, "down") {
			looks++
		}
	}
	if err := e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64))); err != nil || looks < 2 {
		t.Fatalf("%d looks, %v", looks, err)
	}
	for after := 1; after < looks; after++ {
		w, e := standbyOf(t, drbd.UpToDate)
		left := after
		w.drbdRead = func() {
			if left--; left == 0 {
				w.minors[putReq.Minor] = written(drbd.Diskless)
			}
		}
		if err := e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64))); code(err) != escache.CodeConnected {
			t.Errorf("after look %d of %d: %v", after, looks, err)
		}
		untouched(t, w, e)
	}
}

// TestAStartKeepsTheOnlyCopy: escached was killed when it had decided to remove the copy, and had not done so.
func TestAStartKeepsTheOnlyCopy(t *testing.T) {
	w, e := standbyOf(t, drbd.UpToDate)
	w.killAt = len(w.steps) + 2 // the first is the decision
	if died, err := dieAt(func() error { return e.DeleteReplica(t.Context(), ref, nil) }); !died {
		t.Fatalf("not killed: %v", err)
	}
	w.killAt = 0
	w.minors[putReq.Minor] = written(drbd.Diskless)
	e = w.engine()
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	untouched(t, w, e)
}

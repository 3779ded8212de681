package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// booted is a host that was switched off with a used replica.
func booted(t *testing.T) *world {
	t.Helper()
	w, _ := inUse(t)
	w.caches.Reboot()
	w.maps, w.minors = nil, map[int]drbd.Status{}
	return w
}

// TestABootedCopyIsOnRecordBeforeAFrozenPeerGetsItsLink: DRBD 8.4 acknowledges the writes that are under way on
// such a peer although the booted copy lacks them, drops the link, and leaves the booted copy UpToDate.
func TestABootedCopyIsOnRecordBeforeAFrozenPeerGetsItsLink(t *testing.T) {
	away := errors.New("connection refused")
	conflict := &escache.Problem{Code: escache.CodeStaleEpoch, Detail: "attached to n3"}
	for name, c := range map[string]struct {
		change       func(w *world)
		links, tells bool
	}{
		"the peer has the volume, and both count": {func(*world) {}, true, true},
		"the peer does not wait":                  {func(w *world) { w.listensErr = away }, false, false},
		"the peer gets the volume":                {func(w *world) { w.record.InUse = false }, false, false},
		"a client of the peer is fenced":          {func(w *world) { w.record.AttachedNode, w.record.Fenced = "", []string{"n2"} }, false, false},
		"a client here is fenced":                 {func(w *world) { w.record.Fenced = []string{"n1"} }, true, true},
		"fenced, and this copy is on record": {func(w *world) {
			w.record.AttachedNode, w.record.Outdated, w.record.Fenced = "n3", []string{"n1"}, []string{"n2"}
		}, true, false},
		"the arbiter refuses":            {func(w *world) { w.tellErr = conflict }, false, true},
		"the arbiter is lost in between": {func(w *world) { w.tellErr = away }, false, true},
		"the arbiter is away":            {func(w *world) { w.recordErr = away }, false, false},
		"this copy is on record":         {func(w *world) { w.record.Outdated, w.listensErr = []string{"n1"}, away }, true, true},
		"the peer's copy is on record":   {func(w *world) { w.record.Outdated = []string{"n2"} }, true, false},
		"this host has the volume":       {func(w *world) { w.record.AttachedNode = "n1" }, true, false},
		"a third host has the volume":    {func(w *world) { w.record.AttachedNode = "n3" }, true, false},
		"nobody has the volume":          {func(w *world) { w.record.AttachedNode = "" }, true, false},
		"no record":                      {func(w *world) { w.recordErr = errNoRecord }, true, false},
		"record of another image":        {func(w *world) { w.record.ImageID = "20cd" }, true, false},
		"a record that was set back":     {func(w *world) { w.record.Epoch = 0 }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := booted(t)
				w.takenOver(3)
				w.record.Outdated, w.record.InUse = nil, true
				c.change(w)
				e := w.restarted()
				if got, want := w.minors[100], bootedStatus(); got != want {
					t.Fatalf("after the start it is %+v, not %+v", got, want)
				}
				watchFor(t, 20*time.Second, e.watcher.Booted)
				if links := w.minors[100].Connection != drbd.StandAlone; links != c.links {
					t.Errorf("linked: %v: %q", links, w.steps)
				}
				want := escache.OutdateSelfRequest{VolumeRef: ref, ImageID: "10ab", Node: "n1", Peer: "n2", Booted: true}
				if c.tells != slices.Contains(w.told, want) || !c.tells && len(w.told) > 0 {
					t.Errorf("told %+v", w.told)
				}
				if w.outdated[volume.NameOf(ref)] {
					t.Error("DRBD calls it outdated: a frozen peer would go on as if it had lost nothing")
				}
				if w.dialled = slices.Compact(w.dialled); len(w.dialled) > 0 && !slices.Equal(w.dialled, []string{"10.0.0.2:7800"}) {
					t.Errorf("looked for the peer at %q", w.dialled)
				}
			})
		})
	}
}

func bootedStatus() drbd.Status {
	st := cut(drbd.Consistent)
	st.Connection = drbd.StandAlone
	return st
}

// TestABootedCopyIsLinkedAsSoonAsItMay, by the watch or by what csi-controller asks for.
func TestABootedCopyIsLinkedAsSoonAsItMay(t *testing.T) {
	for name, again := range map[string]func(t *testing.T, e *Engine){
		"the watch":   func(t *testing.T, e *Engine) { t.Helper(); watchFor(t, 10*time.Second, e.watcher.Booted) },
		"put_replica": func(t *testing.T, e *Engine) { t.Helper(); mustPut(t, e, putReq) },
	} {
		synctest.Test(t, func(t *testing.T) {
			w := booted(t)
			w.takenOver(3)
			w.record.Outdated, w.record.InUse, w.listensErr = nil, true, errors.New("no route to host")
			e := w.restarted()
			again(t, e)
			if w.minors[100] != bootedStatus() || len(w.told) > 0 {
				t.Errorf("%s: it is %+v, told %+v", name, w.minors[100], w.told)
			}
			if s := statusOf(e, t); s.State != escache.StateStandby || s.DiskState != drbd.Consistent {
				t.Errorf("%s: status %+v", name, s)
			}
			w.listensErr = nil
			again(t, e)
			if w.minors[100] != cut(drbd.Consistent) || len(w.told) != 1 {
				t.Errorf("%s: it is %+v, told %+v", name, w.minors[100], w.told)
			}
		})
	}
}

// TestABootedCopyIsTakenOver: the record gives the volume to this host, and DRBD asks the arbiter.
func TestABootedCopyIsTakenOver(t *testing.T) {
	w := booted(t)
	w.recordErr = errors.New("connection refused")
	e := w.restarted()
	w.takenOver(3)
	w.record.AttachedNode, w.record.Outdated, w.record.Fenced = "n1", nil, []string{"n2"} // n2 was given up by force
	if _, err := connectWith(e, 3); err != nil || w.minors[100].Role != drbd.Primary {
		t.Errorf("%v: %+v, %q", err, w.minors[100], w.steps)
	}
}

// slowly is a kernel that takes long to attach a disk. With failed, drbdadm does not wait for that.
type slowly struct {
	*worldDRBD

	failed error
}

func (d slowly) Attach(ctx context.Context, name string) error {
	if err := d.worldDRBD.Attach(ctx, name); err != nil {
		return err
	}
	d.set(name, func(st *drbd.Status) { st.Disk = escache.DiskAttaching })
	return d.failed
}

func (d slowly) Adjust(ctx context.Context, name string) error {
	if st := d.minors[(*world)(d.worldDRBD).minorOf(name)]; st.Disk == escache.DiskAttaching {
		d.t.Error("it makes the link as soon as DRBD has attached the disk, and nobody was asked")
	}
	return d.worldDRBD.Adjust(ctx, name)
}

// attaching is a host that was booted, whose kernel still attaches the disk. The arbiter is away.
func attaching(t *testing.T, failed error) (*world, *Engine) {
	t.Helper()
	w := booted(t)
	w.takenOver(3)
	w.record.Outdated, w.record.InUse, w.recordErr = nil, true, errInjected
	e := w.engine()
	e.Replicator = slowly{(*worldDRBD)(w), failed}
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	return w, e
}

// TestACopyIsNotLinkedWhileDRBDAttachesItsDisk: whether it was booted shows only when that has ended.
func TestACopyIsNotLinkedWhileDRBDAttachesItsDisk(t *testing.T) {
	for name, failed := range map[string]error{"drbdadm waits no longer": errInjected, "an attach of an earlier escached": nil} {
		for what, do := range map[string]func(t *testing.T, e *Engine){
			"the watches": func(t *testing.T, e *Engine) {
				t.Helper()
				watchFor(t, 30*time.Second, e.watcher.Alone)
				watchFor(t, 30*time.Second, e.watcher.Booted)
			},
			"connect_again": func(t *testing.T, e *Engine) {
				t.Helper()
				v, _ := e.Volumes.Get(volume.NameOf(ref))
				e.watcher.Reconnect(t.Context(), v)
			},
			"a restart": func(t *testing.T, e *Engine) {
				t.Helper()
				if err := e.Recover(t.Context()); err != nil {
					t.Error(err)
				}
			},
			"put_replica": func(t *testing.T, e *Engine) {
				t.Helper()
				if err := e.PutReplica(t.Context(), putReq); code(err) != escache.CodeStuck {
					t.Error(err)
				}
			},
			"dev_connect": func(t *testing.T, e *Engine) {
				t.Helper()
				if _, err := connectWith(e, 4); code(err) != escache.CodeStuck {
					t.Error(err)
				}
			},
		} {
			t.Run(name+": "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w, e := attaching(t, failed)
					do(t, e)
					want := bootedStatus()
					if want.Disk = escache.DiskAttaching; w.minors[100] != want {
						t.Errorf("it is %+v", w.minors[100])
					}
				})
			})
		}
	}
}

// TestACopyWhoseDiskWasAttachedLateIsLinked: one that was booted when the record allows it, others at once.
func TestACopyWhoseDiskWasAttachedLateIsLinked(t *testing.T) {
	for disk, told := range map[escache.DiskState]int{drbd.Consistent: 1, drbd.Outdated: 0} {
		synctest.Test(t, func(t *testing.T) {
			w, e := attaching(t, errInjected)
			time.AfterFunc(20*time.Second, func() {
				(*worldDRBD)(w).set(volume.NameOf(ref), func(st *drbd.Status) { st.Disk = disk })
				w.recordErr = nil
			})
			mustPut(t, e, putReq)
			if w.minors[100] != cut(disk) || len(w.told) != told {
				t.Errorf("%s: it is %+v, told %+v", disk, w.minors[100], w.told)
			}
		})
	}
}

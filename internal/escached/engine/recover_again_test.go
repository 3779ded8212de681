package engine

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// inactive is a host that was booted, and whose LVM has activated nothing.
func inactive(t *testing.T) *world {
	t.Helper()
	w := booted(t)
	w.takenOver(1)
	w.record.AttachedNode, w.record.Outdated = "n1", nil
	lv := w.lvs[volume.NameOf(ref)]
	lv.Active = false
	w.lvs[lv.Name] = lv
	return w
}

// afterTheStart is what escached does by itself about a replica, one after the other: the played host is not safe for
// concurrent use.
func afterTheStart(t *testing.T, e *Engine) {
	t.Helper()
	for _, watch := range []func(ctx context.Context){e.recoverAgain, e.watcher.Alone, e.watcher.Booted, e.watcher.Leftovers} {
		watchFor(t, 5*time.Minute, watch)
	}
	_ = e.space.Refresh(t.Context()) // it keeps the error
}

// TestWhatAStartCouldNotDoIsDoneLater: the host would stay unhealthy, and the volume an error, until somebody starts
// escached again.
func TestWhatAStartCouldNotDoIsDoneLater(t *testing.T) {
	name := volume.NameOf(ref)
	for what, host := range map[string]func(t *testing.T) *world{
		"the host was booted": inactive,
		"it was booted with another address": func(t *testing.T) *world {
			t.Helper()
			w := inactive(t)
			w.address = "10.0.0.9"
			return w
		},
		"a device is there": func(t *testing.T) *world { t.Helper(); w, _ := inUse(t); return w },
		"a change of the device was interrupted": func(t *testing.T) *world {
			t.Helper()
			w, _ := inUse(t)
			if err := w.caches.Hold(t.Context(), name, false); err != nil {
				t.Fatal(err)
			}
			return w
		},
		"the image is mapped, and there is no device": func(t *testing.T) *world {
			t.Helper()
			w, _ := inUse(t)
			if err := w.caches.Remove(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			return w
		},
		"the replica was being removed": func(t *testing.T) *world {
			t.Helper()
			w := inactive(t)
			lv := w.lvs[name]
			v, err := volume.Parse(lv)
			if err != nil {
				t.Fatal(err)
			}
			v.Phase = volume.Deleting
			lv.Tags = v.Tags()
			w.lvs[name] = lv
			return w
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := host(t)
				before := len(w.steps)
				e := w.restarted()
				steps := w.steps[before:]
				afterTheStart(t, e)
				want, left := statusOf(e, t), w.left()
				for n, step := range steps {
					w := host(t)
					w.failAt = len(w.steps) + n + 1
					e := w.engine()
					if err := e.Recover(t.Context()); err != nil {
						t.Fatal(err)
					}
					w.failAt = 0
					afterTheStart(t, e)
					got := statusOf(e, t)
					if got.State != want.State || got.Role != want.Role || got.Error != nil || !slices.Equal(w.left(), left) {
						t.Errorf("failed: %s: %+v, error %+v, left %q, not %q", step, got, got.Error, w.left(), left)
					}
					if n, _ := e.Node(t.Context()); !n.Healthy {
						t.Errorf("failed: %s: %q", step, n.Reasons)
					}
				}
			})
		})
	}
}

// TestAReplicaThatLVMActivatesLateComesUp: at boot another command may have LVM's lock for longer than escached waits.
func TestAReplicaThatLVMActivatesLateComesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := inactive(t)
		w.notActivated = volume.NameOf(ref)
		e := w.engine()
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, _ := e.Node(t.Context()); n.Healthy || statusOf(e, t).State != escache.StateError {
			t.Fatalf("%q, status %+v", n.Reasons, statusOf(e, t))
		}
		w.notActivated = ""
		afterTheStart(t, e)
		if w.minors[100] != cut(drbd.Consistent) {
			t.Errorf("it is %+v: %q", w.minors[100], w.steps)
		}
		if n, _ := e.Node(t.Context()); !n.Healthy || statusOf(e, t).State != escache.StateStandby {
			t.Errorf("%q, status %+v", n.Reasons, statusOf(e, t))
		}
		if _, err := connectWith(e, 2); err != nil {
			t.Error(err)
		}
	})
}

// TestAFaultStaysAsLongAsItsCause: the host must not look healthy by then.
func TestAFaultStaysAsLongAsItsCause(t *testing.T) {
	name := volume.NameOf(ref)
	for what, host := range map[string]func(t *testing.T) *world{
		"LVM does not activate it": func(t *testing.T) *world {
			t.Helper()
			w := inactive(t)
			w.notActivated = name
			return w
		},
		"its tags cannot be read": func(t *testing.T) *world {
			t.Helper()
			w := inactive(t)
			lv := w.lvs[name]
			lv.Tags = map[string]string{"v": "99", "pool": "rbd", "image": "v1"}
			w.lvs[name] = lv
			return w
		},
		"its I/O is frozen": func(t *testing.T) *world {
			t.Helper()
			w, _ := inUse(t)
			if err := w.caches.Hold(t.Context(), name, false); err != nil {
				t.Fatal(err)
			}
			w.freeze(name)
			w.failAt = len(w.steps) + 1
			return w
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := host(t)
				e := w.engine()
				if err := e.Recover(t.Context()); err != nil {
					t.Fatal(err)
				}
				w.failAt = 0
				replica, steps := w.minors[100], len(w.steps)
				watchFor(t, 5*time.Minute, e.recoverAgain)
				_ = e.space.Refresh(t.Context())
				if n, _ := e.Node(t.Context()); n.Healthy || w.minors[100] != replica || replica.Suspended && len(w.steps) != steps {
					t.Errorf("%q: %+v, steps %q", n.Reasons, w.minors[100], w.steps)
				}
			})
		})
	}
}

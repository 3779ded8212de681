package engine

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestADiskThatWasLostWhileTheHostWasOffIsAFailedDisk: one of several disks of the volume group. csi-controller replaces
// a copy at once only if its host says that the disk has failed.
func TestADiskThatWasLostWhileTheHostWasOffIsAFailedDisk(t *testing.T) {
	name := volume.NameOf(ref)
	for what, c := range map[string]struct {
		partial, active, fails bool
	}{
		"on the lost disk":                 {partial: true, fails: true},
		"on another disk":                  {},
		"on a disk that works without LVM": {partial: true, active: true},
	} {
		w := booted(t)
		w.takenOver(3)
		w.missingDisks = 1
		lv := w.lvs[name]
		lv.Partial, lv.Active = c.partial, c.active
		w.lvs[name] = lv
		if c.fails {
			w.notActivated = name // LVM refuses to activate a part of a volume
		}
		e := w.engine()
		if err := e.Recover(t.Context()); err != nil {
			t.Fatal(what, err)
		}
		status, err := e.Status(t.Context(), &ref)
		if err != nil || len(status.Volumes) != 1 {
			t.Fatal(what, status, err)
		}
		s := status.Volumes[0]
		told := s.DiskState.Lost() && s.State == escache.StateError && s.Error.Code == escache.CodeCacheError
		if told != c.fails || e.FailedDisks.Get(name) != faileddisk.Sound {
			t.Errorf("%s: %+v, error %+v, mark %q", what, s, s.Error, e.FailedDisks.Get(name))
		}
		n, _ := e.Node(t.Context())
		if n.Healthy || !strings.Contains(strings.Join(n.Reasons, " "), "vgreduce --removemissing --force escache") {
			t.Errorf("%s: the host tells no remedy: %q", what, n.Reasons)
		}
	}
}

// TestACopyWhoseDiskLVMFindsLateIsKept: the host was off, so the copy has missed nothing that is not on record. Its peer may
// never come back.
func TestACopyWhoseDiskLVMFindsLateIsKept(t *testing.T) {
	name := volume.NameOf(ref)
	for what, again := range map[string]func(t *testing.T, w *world, e *Engine) *Engine{
		"at the next boot": func(t *testing.T, w *world, _ *Engine) *Engine { t.Helper(); return w.restarted() },
		"while escached works": func(t *testing.T, _ *world, e *Engine) *Engine {
			t.Helper()
			afterTheStart(t, e)
			return e
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := inactive(t)
				away := w.lvs[name]
				back := away
				away.Partial = true
				w.lvs[name], w.notActivated = away, name
				before := len(w.steps)
				e := w.engine()
				if err := e.Recover(t.Context()); err != nil {
					t.Fatal(err)
				}
				if s := statusOf(e, t); !s.DiskState.Lost() {
					t.Fatalf("status %+v", s)
				}
				steps := len(w.steps)
				if watchFor(t, time.Minute, e.recoverAgain); len(w.steps) != steps {
					t.Errorf("it is tried without the disk: %q", w.steps[steps:])
				}
				w.lvs[name], w.notActivated = back, ""
				e = again(t, w, e)
				if steps := w.steps[before:]; slices.Contains(steps, "create-md") || len(w.told) > 0 {
					t.Errorf("steps %q, told %+v", steps, w.told)
				}
				if s := statusOf(e, t); s.State != escache.StateStandby || s.DiskState != drbd.Consistent {
					t.Errorf("status %+v, error %+v", s, s.Error)
				}
				if _, err := connectWith(e, 2); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

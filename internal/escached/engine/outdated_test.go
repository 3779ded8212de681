package engine

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// booted is a host that was switched off with a used replica.
func booted(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	for _, verb := range verbsOfALife()[:2] {
		if err := verb.do(e); err != nil {
			t.Fatal(err)
		}
	}
	w.caches.Reboot()
	w.maps, w.minors = nil, map[int]drbd.Status{}
	return w
}

func TestAtBootExactlyWhatTheRecordNamesIsOutdatedBeforeItComesUp(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		want   bool
	}{
		"named":                {func(*world) {}, true},
		"the peer is named":    {func(w *world) { w.record.Outdated = []string{"n2"} }, false},
		"nobody is named":      {func(w *world) { w.record.Outdated = nil }, false},
		"attached elsewhere":   {func(w *world) { w.record.Outdated = nil; w.record.AttachedNode = "n2" }, false},
		"no record":            {func(w *world) { w.recordErr = errNoRecord }, false},
		"record of another":    {func(w *world) { w.record.ImageID = "20cd" }, false},
		"the arbiter is away":  {func(w *world) { w.recordErr = errors.New("connection refused") }, false},
		"image not known here": {func(w *world) { w.record.ImageID = "" }, true},
		// A restored etcd remembers that this copy was outdated once.
		"a record from before what was seen here": {func(w *world) { w.record.Epoch = 0 }, false},
	} {
		w := booted(t)
		w.takenOver(3)
		c.change(w)
		steps := len(w.steps)
		e := w.restarted()
		if w.outdated[volume.NameOf(ref)] != c.want {
			t.Errorf("%s: outdated is %v", name, !c.want)
		}
		up := false
		for _, step := range w.steps[steps:] {
			up = up || step == "up"
			if step == "outdate" && up {
				t.Errorf("%s: marked only after it came up", name)
			}
		}
		if !up {
			t.Errorf("%s: the replica did not come up", name)
		}
		unknown := name == "the arbiter is away" || name == "a record from before what was seen here"
		if pending := e.outdated.Unasked(volume.NameOf(ref)); pending != unknown {
			t.Errorf("%s: pending is %v", name, pending)
		}
	}
}

func TestAReplicaThatCameUpWithoutTheArbiterIsAskedAboutAgain(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		want   bool
	}{
		"named":                {func(*world) {}, true},
		"not named":            {func(w *world) { w.record.Outdated = nil }, false},
		"linked by now":        {func(w *world) { w.minors[100] = linked(drbd.Connected, drbd.UpToDate) }, false},
		"synchronising":        {func(w *world) { w.minors[100] = linked("SyncTarget", drbd.Inconsistent) }, false},
		"promoted by somebody": {func(w *world) { st := cut(drbd.UpToDate); st.Role = drbd.Primary; w.minors[100] = st }, false},
	} {
		w := booted(t)
		w.recordErr = errors.New("not up yet")
		e := w.restarted()
		w.minors[100] = cut(drbd.Consistent)
		e.outdated.Ask(t.Context(), ref)
		if w.outdated[volume.NameOf(ref)] || !e.outdated.Unasked(volume.NameOf(ref)) {
			t.Fatalf("%s: judged without an answer", name)
		}
		w.takenOver(3)
		c.change(w)
		e.outdated.Ask(t.Context(), ref)
		if w.outdated[volume.NameOf(ref)] != c.want || e.outdated.Unasked(volume.NameOf(ref)) {
			t.Errorf("%s: outdated is %v, pending %v", name, w.outdated[volume.NameOf(ref)], e.outdated.Unasked(volume.NameOf(ref)))
		}
	}
}

func TestAReplicaThatCannotBeMarkedComesUpAndIsTriedAgain(t *testing.T) {
	w := booted(t)
	w.takenOver(3)
	w.failAt = len(w.steps) + 1
	e := w.engine()
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, up := w.minors[100]; !up || w.outdated[volume.NameOf(ref)] || !e.outdated.Unasked(volume.NameOf(ref)) {
		t.Fatalf("up %v, outdated %v, pending %v: %q", up, w.outdated[volume.NameOf(ref)], e.outdated.Unasked(volume.NameOf(ref)), w.steps)
	}
	w.failAt = 0
	w.minors[100] = cut(drbd.Consistent)
	e.outdated.Ask(t.Context(), ref)
	if !w.outdated[volume.NameOf(ref)] {
		t.Error("not tried again")
	}
}

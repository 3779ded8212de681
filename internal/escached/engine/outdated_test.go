package engine

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// standing is a host whose replica lost its link, and whose escached is about to start again.
func standing(t *testing.T) *world {
	t.Helper()
	w := booted(t)
	w.restarted()
	w.minors[100] = cut(drbd.UpToDate)
	return w
}

func TestAtAStartExactlyWhatTheRecordNamesIsOutdated(t *testing.T) {
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
		w := standing(t)
		w.takenOver(3)
		c.change(w)
		e := w.restarted()
		if w.outdated[volume.NameOf(ref)] != c.want {
			t.Errorf("%s: outdated is %v", name, !c.want)
		}
		unknown := name == "the arbiter is away" || name == "a record from before what was seen here"
		if pending := e.outdated.Unasked(volume.NameOf(ref)); pending != unknown {
			t.Errorf("%s: pending is %v", name, pending)
		}
	}
}

func TestAReplicaThatWasFoundWithoutTheArbiterIsAskedAboutAgain(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		want   bool
	}{
		"named":                {func(*world) {}, true},
		"not named":            {func(w *world) { w.record.Outdated = nil }, false},
		"linked by now":        {func(w *world) { w.minors[100] = linked(drbd.Connected, drbd.UpToDate) }, false},
		"synchronising":        {func(w *world) { w.minors[100] = linked("SyncTarget", drbd.Inconsistent) }, false},
		"promoted by somebody": {func(w *world) { st := cut(drbd.UpToDate); st.Role = drbd.Primary; w.minors[100] = st }, false},
		"booted":               {func(w *world) { w.minors[100] = cut(drbd.Consistent) }, false},
	} {
		w := standing(t)
		w.recordErr = errors.New("not up yet")
		e := w.restarted()
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

func TestAReplicaThatCannotBeMarkedIsTriedAgain(t *testing.T) {
	w := standing(t)
	w.takenOver(3)
	w.failAt = len(w.steps) + 1
	e := w.engine()
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.outdated[volume.NameOf(ref)] || !e.outdated.Unasked(volume.NameOf(ref)) {
		t.Fatalf("outdated %v, pending %v: %q", w.outdated[volume.NameOf(ref)], e.outdated.Unasked(volume.NameOf(ref)), w.steps)
	}
	w.failAt = 0
	e.outdated.Ask(t.Context(), ref)
	if !w.outdated[volume.NameOf(ref)] {
		t.Error("not tried again")
	}
}

package watch

import (
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func TestWhatWasTakenOverIsGivenUp(t *testing.T) {
	rows := []struct {
		name   string
		change func(w *world)
		asked  []int64
	}{
		{"frozen, and another node has it", func(w *world) { w.takeOver("n2") }, []int64{6}},
		{"frozen, and by now nobody has it", func(w *world) { w.takeOver("") }, []int64{6}},
		{"frozen, and taken over twice since", func(w *world) { w.takeOver("n2"); w.takeOver("n3") }, []int64{6}},
		{"frozen, and this node has it anew", func(w *world) { w.takeOver(w.object.Status.AttachedNode) }, nil},
		{"frozen, and nobody has taken it over", func(w *world) { w.status.IOSuspended = true }, nil},
		{"frozen, and the Kubernetes API does not answer", func(w *world) { w.takeOver("n2"); w.apiDown = true }, nil},
		{"taken over, and not frozen: the kubelet unstages it", func(w *world) { w.takeOver("n2"); w.status.IOSuspended = false }, nil},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			w := healthyWorld(t)
			w.object.Status.Epoch, w.status.Epoch = 5, 5
			row.change(w)
			w.polls(4)
			if !slices.Equal(w.abandoned, row.asked) {
				t.Errorf("gave up in epochs %v, want %v", w.abandoned, row.asked)
			}
		})
	}
}

func TestGivingUpIsTriedAgainWhenItFails(t *testing.T) {
	w := healthyWorld(t)
	w.takeOver("n2")
	w.abandonError = &escache.Problem{Code: escache.CodeBusy}
	w.polls(10)
	if n := len(w.abandoned); n < 3 || n > 4 {
		t.Errorf("tried %d times in ten polls", n)
	}
}

// A map without a cache is never frozen. It keeps the image's lock, and so the new holder out.
func TestAMapWithoutACacheThatWasTakenOverIsGivenUp(t *testing.T) {
	rows := []struct {
		name   string
		change func(w *world)
		asked  []int64
	}{
		{"another node has it", func(w *world) { w.takeOver("n2") }, []int64{6}},
		{"by now nobody has it", func(w *world) { w.takeOver("") }, []int64{6}},
		{"this node has it anew", func(w *world) { w.takeOver("n1") }, nil},
		{"nobody has taken it over", func(*world) {}, nil},
		{"the Kubernetes API does not answer", func(w *world) { w.takeOver("n2"); w.apiDown = true }, nil},
		{"taken over, and not mapped yet", func(w *world) { w.takeOver("n2"); w.status.ClientAddress = "" }, nil},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t)
			w.status.Uncached, w.status.Role, w.status.Mode, w.status.Peers = true, escache.RoleUnknown, escache.ModeWritethrough, nil
			w.object.Status.Epoch, w.status.Epoch = 5, 5
			w.polls(6)
			row.change(w)
			w.status.IOSuspended = false
			w.polls(20)
			if !slices.Equal(w.abandoned, row.asked) {
				t.Errorf("gave up in epochs %v, want %v", w.abandoned, row.asked)
			}
			if w.reads > 5 {
				t.Errorf("read the record %d times in 26 polls", w.reads)
			}
		})
	}
}

package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// kept is what a host of the tests' size leaves to everything else.
const kept = 1 << 30

// laidWith is a host with a replica, and this much memory for caches.
func laidWith(t *testing.T, free int64) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.restarted()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.memory.Available = kept + free
	return w, e
}

func TestAVolumeIsConnectedOnlyIfThereIsMemoryForIt(t *testing.T) {
	need := putReq.CacheBytes / cachetest.MemoryShare
	for name, prepare := range map[string]func(*world){
		"the first time":  func(*world) {},
		"as a take-over":  func(w *world) { w.minors[100] = cut(drbd.UpToDate) },
		"after a restart": func(w *world) { w.minors = map[int]drbd.Status{} },
	} {
		w, e := laidWith(t, need-1)
		if w.memory.Available-need >= kept {
			t.Fatal("there is enough memory")
		}
		prepare(w)
		w.outdatePeer = func(escache.OutdatePeerRequest) { t.Errorf("%s: the arbiter was asked", name) }
		steps, left := len(w.steps), w.left()
		slices.Sort(left)
		_, err := connectWith(e, 7)
		if code(err) != escache.CodeNoRoom {
			t.Errorf("%s: %v, want %s", name, err, escache.CodeNoRoom)
			continue
		}
		detail := problem.Of(err).Detail
		for _, part := range []string{"rbd/v1", "n1", "655.4 KiB", "1.0 GiB of 64.0 GiB", "docs/sizing.md", "stay"} {
			if !strings.Contains(detail, part) {
				t.Errorf("%s: %q does not say %q", name, detail, part)
			}
		}
		now := w.left()
		slices.Sort(now)
		if len(w.steps) != steps || !slices.Equal(now, left) {
			t.Errorf("%s: the refusal changed something: %q, it left %q", name, w.steps[steps:], now)
		}
		if v, _ := e.Volumes.Get(volume.NameOf(ref)); v.Epoch != 0 {
			t.Errorf("%s: the refusal stored epoch %d", name, v.Epoch)
		}
		w.outdatePeer = func(escache.OutdatePeerRequest) {}
		w.memory.Available++
		if _, err := connectWith(e, 7); err != nil {
			t.Errorf("%s: with memory enough: %v", name, err)
		}
	}
}

func TestAConnectedVolumeIsNeverRefusedForMemory(t *testing.T) {
	w, e := laidWith(t, kept)
	first, err := connectWith(e, 1)
	if err != nil {
		t.Fatal(err)
	}
	w.memory.Available = 0
	for epoch := range int64(2) { // the second time after a restart
		if again, err := connectWith(e, 1+epoch); err != nil || again != first {
			t.Errorf("repeated: %+v, %v", again, err)
		}
		e = w.restarted()
	}
	if again, err := e.DevConnect(t.Context(), escache.ConnectRequest{
		VolumeRef: ref, ImageID: "10ab", Epoch: 3, Fenced: []string{first.ClientAddress},
	}); err != nil {
		t.Errorf("made anew because its client is fenced: %+v, %v", again, err)
	}
}

func TestVolumesThatAreConnectedAtTheSameTimeDoNotTakeTheSameMemory(t *testing.T) {
	need := putReq.CacheBytes / cachetest.MemoryShare
	w, e := laidWith(t, need+need/2)
	second := putReq
	second.Image, second.ImageID, second.Port, second.Minor = "v2", "20cd", 7801, 101
	if err := e.PutReplica(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	var meanwhile error
	w.drbdRead = func() {
		w.drbdRead = func() {}
		_, meanwhile = e.DevConnect(t.Context(), escache.ConnectRequest{VolumeRef: second.VolumeRef, Epoch: 1})
	}
	if _, err := connectWith(e, 1); err != nil {
		t.Fatal(err)
	}
	if code(meanwhile) != escache.CodeNoRoom {
		t.Errorf("the second one got %v, want %s", meanwhile, escache.CodeNoRoom)
	}
	if free, err := e.MemoryClaims.Free(); err != nil || free != need/2 {
		t.Errorf("%d bytes are free after the connect, %v, want %d", free, err, need/2)
	}
	w.mapErr = errInjected
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 2); err == nil {
		t.Fatal("there is no image")
	}
	if free, _ := e.MemoryClaims.Free(); free != need+need/2 {
		t.Errorf("%d bytes are free after a connect that failed, want %d", free, need+need/2)
	}
}

func TestWithoutAReadingOfTheMemoryNothingIsConnected(t *testing.T) {
	w, e := laidWith(t, kept)
	w.memoryErr = errors.New("no meminfo")
	steps := len(w.steps)
	if _, err := connectWith(e, 1); code(err) != escache.CodeInternal || len(w.steps) != steps {
		t.Errorf("%v, %q", err, w.steps[steps:])
	}
}

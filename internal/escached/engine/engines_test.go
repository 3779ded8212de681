package engine

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// withLog is a host that has the second engine too.
func withLog(t *testing.T) *world {
	w := newWorld(t)
	w.log = cachetest.NewFake()
	w.plug(w.log)
	return w
}

func putLog(e *Engine, t *testing.T) error {
	t.Helper()
	req := putReq
	req.Engine = escache.EngineLog
	return e.PutReplica(t.Context(), req)
}

func connectLog(e *Engine, t *testing.T, epoch int64) error {
	t.Helper()
	_, err := e.DevConnect(t.Context(), escache.ConnectRequest{VolumeRef: ref, ImageID: "10ab", Epoch: epoch, Engine: escache.EngineLog})
	return err
}

func statusOf(e *Engine, t *testing.T) escache.VolumeStatus {
	t.Helper()
	s, err := e.Status(t.Context(), &ref)
	if err != nil {
		t.Fatal(err)
	}
	return s.Volumes[0]
}

func TestAVolumeLivesOnTheEngineOfItsTagAlsoAfterARestart(t *testing.T) {
	w := withLog(t)
	e := w.engine()
	if err := putLog(e, t); err != nil {
		t.Fatal(err)
	}
	if s := statusOf(e, t); s.Engine != escache.EngineLog || s.State != escache.StateStandby {
		t.Errorf("laid: %+v", s)
	}
	e = w.restarted()
	if err := connectLog(e, t, 3); err != nil {
		t.Fatal(err)
	}
	name := volume.NameOf(ref)
	if !slices.Equal(w.log.Assembled(), []string{name}) || len(w.caches.Assembled()) != 0 {
		t.Errorf("assembled are %q of the log and %q of the other engine", w.log.Assembled(), w.caches.Assembled())
	}
	e = w.restarted()
	if s := statusOf(e, t); s.Engine != escache.EngineLog || s.State != escache.StateConnected {
		t.Errorf("connected: %+v", s)
	}
	if _, err := e.Hold(t.Context(), escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"release": e.Release(t.Context(), escache.ReleaseRequest{VolumeRef: ref}),
		"mode":    e.SetMode(t.Context(), escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWritethrough}),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	w.log.Reboot()
	w.maps = nil
	w.minors[100] = linked("Connected", "UpToDate")
	e = w.restarted()
	if err := connectLog(e, t, 4); err != nil {
		t.Fatalf("after a power loss: %v", err)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteReplica(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if left := w.left(); len(left) > 0 {
		t.Errorf("left behind %q", left)
	}
}

func TestAReplicaKeepsItsEngine(t *testing.T) {
	for _, own := range []escache.Engine{escache.EngineWritecache, escache.EngineLog} {
		w := withLog(t)
		e := w.engine()
		put, connect := e.PutReplica(t.Context(), putReq), func() error { return connectLog(e, t, 3) }
		other := func() error { return putLog(e, t) }
		if own == escache.EngineLog {
			w = withLog(t)
			e = w.engine()
			put = putLog(e, t)
			connect = func() error { _, err := connectWith(e, 3); return err }
			other = func() error { return e.PutReplica(t.Context(), putReq) }
		}
		if put != nil {
			t.Fatal(put)
		}
		before := len(w.steps)
		if got := code(connect()); got != escache.CodeReplicaMismatch {
			t.Errorf("%s: a connect with another engine: %q", own, got)
		}
		if got := code(other()); got != escache.CodeReplicaMismatch {
			t.Errorf("%s: a PUT with another engine: %q", own, got)
		}
		if steps := w.steps[before:]; len(steps) > 0 {
			t.Errorf("%s: the refusals did %q", own, steps)
		}
		if s := statusOf(e, t); s.Engine != own || s.Epoch != 0 {
			t.Errorf("%s: %+v", own, s)
		}
	}
}

func TestAHostThatCannotRunTheEngineRefusesBeforeAnyChange(t *testing.T) {
	for name, take := range map[string]func(w *world){
		"escached has no such engine": func(w *world) { w.log = nil },
		"the kernel lacks a module":   func(w *world) { w.log.NoKernel = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := withLog(t)
			if err := putLog(w.engine(), t); err != nil {
				t.Fatal(err)
			}
			take(w)
			e := w.engine()
			_ = e.Recover(t.Context())
			before := len(w.steps)
			if got := code(connectLog(e, t, 3)); got != escache.CodeEngineMissing {
				t.Errorf("connect: %q", got)
			}
			if steps := w.steps[before:]; len(steps) > 0 {
				t.Errorf("the refused connect did %q", steps)
			}
			if node, err := e.Node(t.Context()); err != nil || !slices.Equal(node.Engines, []escache.Engine{escache.EngineWritecache}) {
				t.Errorf("the host says %+v, %v", node, err)
			}
			empty := withLog(t)
			take(empty)
			if got := code(putLog(empty.engine(), t)); got != escache.CodeEngineMissing || len(empty.steps) > 0 || len(empty.left()) > 0 {
				t.Errorf("PUT: %q, it did %q and left %q", got, empty.steps, empty.left())
			}
		})
	}
}

// TestAVolumeOfAnEngineThatIsGoneIsNeverAStandby: escached was set back to a version without the
// engine while a device is there.
func TestAVolumeOfAnEngineThatIsGoneIsNeverAStandby(t *testing.T) {
	w := withLog(t)
	e := w.engine()
	if err := putLog(e, t); err != nil {
		t.Fatal(err)
	}
	if err := connectLog(e, t, 3); err != nil {
		t.Fatal(err)
	}
	log := w.log
	w.log = nil
	e = w.engine()
	before := len(w.steps)
	if err := e.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := statusOf(e, t)
	if s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeEngineMissing || s.DirtyBytes != nil {
		t.Errorf("its status is %+v", s)
	}
	if node, err := e.Node(t.Context()); err != nil || node.Healthy {
		t.Errorf("the host says %+v, %v", node, err)
	}
	if got := code(e.DeleteReplica(t.Context(), ref, new(int64(math.MaxInt64)))); got != escache.CodeEngineMissing {
		t.Errorf("delete with discard: %q", got)
	}
	if got := code(e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})); got != escache.CodeEngineMissing {
		t.Errorf("stop: %q", got)
	}
	if steps := w.steps[before:]; len(steps) > 0 {
		t.Errorf("it did %q", steps)
	}
	w.log = log
	if s := statusOf(w.restarted(), t); s.State != escache.StateConnected {
		t.Errorf("with the engine again it is %+v", s)
	}
}

// TestAProcessThatDiesDuringStopKeepsItsDevice: perhaps it had answered what is not on the disk.
func TestAProcessThatDiesDuringStopKeepsItsDevice(t *testing.T) {
	w := withLog(t)
	e := w.engine()
	if err := putLog(e, t); err != nil {
		t.Fatal(err)
	}
	if err := connectLog(e, t, 3); err != nil {
		t.Fatal(err)
	}
	w.log.StopErr = cache.ErrUnserved
	if got := code(e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})); got != escache.CodeDirtyUnknown {
		t.Errorf("stop: %q", got)
	}
	if s := statusOf(e, t); s.State != escache.StateConnected || s.DirtyBytes == nil || s.Error != nil {
		t.Errorf("afterwards it is %+v", s)
	}
	w.log.StopErr = nil
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Error(err)
	}
}

// TestAModeIsSetAlsoIfAnInterruptedChangeHasLeftIt: what completes that change sets another mode.
func TestAModeIsSetAlsoIfAnInterruptedChangeHasLeftIt(t *testing.T) {
	w := withLog(t)
	w.log.Resumed = func(s *cache.State) { s.Options.Mode = cache.Writethrough }
	e := w.engine()
	if err := errors.Join(putLog(e, t), connectLog(e, t, 3)); err != nil {
		t.Fatal(err)
	}
	w.log.Alter(volume.NameOf(ref), func(s *cache.State) { s.Held = true })
	if err := e.SetMode(t.Context(), escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWriteback}); err != nil {
		t.Fatal(err)
	}
	if s := statusOf(e, t); s.Mode != escache.ModeWriteback {
		t.Errorf("it is in mode %s", s.Mode)
	}
}

func TestADeviceThatNothingServesIsRevivedUnlessItIsGivenUp(t *testing.T) {
	w := withLog(t)
	e := w.engine()
	if err := putLog(e, t); err != nil {
		t.Fatal(err)
	}
	if err := connectLog(e, t, 3); err != nil {
		t.Fatal(err)
	}
	name := volume.NameOf(ref)
	kill := func() {
		w.log.Alter(name, func(s *cache.State) { s.Unserved, s.Known = "its process is dead", false })
	}
	kill()
	if s := statusOf(e, t); s.State != escache.StateConnected || s.DirtyBytes != nil || s.Error == nil || s.Error.Code != escache.CodeStuck {
		t.Errorf("its status is %+v", s)
	}
	if got := code(e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})); got != escache.CodeDirtyUnknown {
		t.Errorf("stop: %q", got)
	}
	e.watcher.ReviveAll(t.Context(), map[string]time.Time{})
	if s := statusOf(e, t); s.Error != nil || s.DirtyBytes == nil {
		t.Errorf("revived: %+v", s)
	}
	kill()
	if err := e.SetMode(t.Context(), escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWritethrough}); err != nil {
		t.Error(err)
	}
	if s := statusOf(e, t); s.Error != nil {
		t.Errorf("a verb does not revive it: %+v", s)
	}
	kill()
	v, _ := e.Volumes.Get(name)
	abandoned := v
	abandoned.Phase = volume.Abandoning
	e.Volumes.Put(abandoned)
	before := len(w.steps)
	e.watcher.ReviveAll(t.Context(), map[string]time.Time{})
	if steps := w.steps[before:]; len(steps) > 0 {
		t.Errorf("given up, and it did %q", steps)
	}
}

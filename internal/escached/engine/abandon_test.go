package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// cutOff is a host with the device of epoch 2, frozen because its peer is lost, and the record of a
// take-over in epoch 3.
func cutOff(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 2); err != nil {
		t.Fatal(err)
	}
	w.freeze(volume.NameOf(ref))
	w.takenOver(3)
	return w, e
}

func abandon(e *Engine, epoch int64) error {
	return e.Abandon(context.Background(), escache.AbandonRequest{VolumeRef: ref, Epoch: epoch})
}

func TestADeviceIsGivenUpOnlyOnProofThatItIsSuperseded(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		epoch  int64
		want   escache.Code
	}{
		"taken over, and on record as outdated": {func(*world) {}, 3, ""},
		"taken over and stopped since":          {func(w *world) { w.record.AttachedNode = "" }, 3, ""},
		"taken over twice":                      {func(w *world) { w.record.Epoch = 5 }, 3, ""},
		"its replica was replaced": {func(w *world) {
			w.record.Outdated, w.record.Replicas = nil, []string{"n2", "n3"}
		}, 3, ""},
		"the arbiter is away":          {func(w *world) { w.recordErr = errors.New("connection refused") }, 3, escache.CodeNotSuperseded},
		"the arbiter does not know it": {func(w *world) { w.recordErr = errNoRecord }, 3, escache.CodeNotSuperseded},
		"the same epoch":               {func(*world) {}, 2, escache.CodeNotSuperseded},
		"an older epoch":               {func(*world) {}, 1, escache.CodeNotSuperseded},
		"newer than the record":        {func(*world) {}, 4, escache.CodeNotSuperseded},
		"attached here again":          {func(w *world) { w.record.AttachedNode = "n1" }, 3, escache.CodeNotSuperseded},
		"attached elsewhere, but not promoted yet: this may be the only copy": {func(w *world) { w.record.Outdated = nil },
			3, escache.CodeNotSuperseded},
		"attached nowhere, and not outdated": {func(w *world) { w.record.Outdated, w.record.AttachedNode = nil, "" },
			3, escache.CodeNotSuperseded},
		"no replicas on record": {func(w *world) { w.record.Outdated, w.record.Replicas = nil, nil }, 3, escache.CodeNotSuperseded},
		"another image":         {func(w *world) { w.record.ImageID = "20cd" }, 3, escache.CodeNotSuperseded},
	} {
		w, e := cutOff(t)
		c.change(w)
		steps := len(w.steps)
		err := abandon(e, c.epoch)
		if code(err) != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		if c.want != "" && len(w.steps) != steps {
			t.Errorf("%s: a refusal changes nothing, but there was %q", name, w.steps[steps:])
		}
		if c.want == "" && (len(w.maps)+w.connected() > 0 || w.minors[100].Disk != drbd.Outdated || w.minors[100].Role != drbd.Secondary) {
			t.Errorf("%s: left: %q, %+v", name, w.left(), w.minors[100])
		}
		if c.want != "" {
			continue
		}
		steps = len(w.steps)
		w.recordErr = errors.New("away") // what is done needs no proof
		if err := abandon(e, c.epoch); err != nil || len(w.steps) != steps {
			t.Errorf("%s, repeated: %v, %q", name, err, w.steps[steps:])
		}
		if _, err := connectWith(e, 2); code(err) != escache.CodeStaleEpoch {
			t.Errorf("%s: the old epoch is taken again: %v", name, err)
		}
	}
}

// TestADeviceWithTheLinkUpIsGivenUpIfThePeerHasAll: its holder was fenced and lives, so nothing is
// frozen. The peer has all that was acknowledged, and another node needs the volume.
func TestADeviceWithTheLinkUpIsGivenUpIfThePeerHasAll(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world, st *drbd.Status)
		epoch  int64
		want   escache.Code
	}{
		"the peer has it":         {func(*world, *drbd.Status) {}, 3, ""},
		"a third node has it":     {func(w *world, _ *drbd.Status) { w.record.AttachedNode = "n3" }, 3, ""},
		"it was detached since":   {func(w *world, _ *drbd.Status) { w.record.AttachedNode = "" }, 3, ""},
		"detached in this epoch":  {func(w *world, _ *drbd.Status) { w.record.AttachedNode, w.record.Epoch = "", 2 }, 2, ""},
		"the peer is resyncing":   {func(_ *world, st *drbd.Status) { st.Connection, st.PeerDisk = "SyncSource", drbd.Inconsistent }, 3, escache.CodeNotSuperseded},
		"the peer has no disk":    {func(_ *world, st *drbd.Status) { st.PeerDisk = drbd.Diskless }, 3, escache.CodeNotSuperseded},
		"the peer is outdated":    {func(w *world, _ *drbd.Status) { w.record.Outdated = []string{"n2"} }, 3, escache.CodeNotSuperseded},
		"the peer is no replica":  {func(w *world, _ *drbd.Status) { w.record.Replicas = []string{"n1", "n3"} }, 3, escache.CodeNotSuperseded},
		"it is this node's again": {func(w *world, _ *drbd.Status) { w.record.AttachedNode = "n1" }, 3, escache.CodeNotSuperseded},
		"it is this node's":       {func(w *world, _ *drbd.Status) { w.record.AttachedNode, w.record.Epoch = "n1", 2 }, 2, escache.CodeNotSuperseded},
		"of this epoch, and another node's": {func(w *world, _ *drbd.Status) { w.record.Epoch = 2 },
			2, escache.CodeNotSuperseded},
		"newer than the record":  {func(*world, *drbd.Status) {}, 4, escache.CodeNotSuperseded},
		"the record is away":     {func(w *world, _ *drbd.Status) { w.recordErr = errors.New("connection refused") }, 3, escache.CodeNotSuperseded},
		"the link is lost again": {func(_ *world, st *drbd.Status) { st.Connection, st.PeerDisk = "WFConnection", "DUnknown" }, 3, escache.CodeNotSuperseded},
	} {
		w, e := cutOff(t)
		w.record.Outdated = nil
		st := linked(drbd.Connected, drbd.UpToDate)
		st.Role = drbd.Primary
		c.change(w, &st)
		w.minors[100] = st
		steps := len(w.steps)
		err := abandon(e, c.epoch)
		switch {
		case code(err) != c.want:
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		case c.want != "" && len(w.steps) != steps:
			t.Errorf("%s: a refusal changes nothing, but there was %q", name, w.steps[steps:])
		case c.want == "" && (len(w.maps)+w.connected() > 0 || w.minors[100].Role != drbd.Secondary):
			t.Errorf("%s: left: %q, %+v", name, w.left(), w.minors[100])
		}
	}
}

// TestThePeerThatHasAllIsNotOverwritten: DRBD fills the peer from whoever was Primary last. For as
// long as that takes, no copy that the record calls current could be used.
func TestThePeerThatHasAllIsNotOverwritten(t *testing.T) {
	for n := 0; ; n++ {
		w, e := cutOff(t)
		w.record.Outdated, w.peerWaits = nil, true
		st := linked(drbd.Connected, drbd.UpToDate)
		st.Role = drbd.Primary
		w.minors[100] = st
		if n > 0 {
			w.killAt = len(w.steps) + n
		}
		died, err := dieAt(func() error { return abandon(e, 3) })
		if died {
			at := w.steps[len(w.steps)-1]
			e = w.restarted()
			if err = abandon(e, 3); err != nil {
				t.Fatalf("killed at %s, repeated: %v", at, err)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if st := w.minors[100]; st.PeerDisk != drbd.UpToDate || st.Disk == drbd.UpToDate {
			t.Errorf("killed %v at step %d: the copy that was given up is %s (%s), and its peer %s", died, n, st.Disk, st.Connection, st.PeerDisk)
		}
		if n > 0 && !died {
			break
		}
	}
}

func TestAnOpenDeviceFailsItsIOAndIsGivenUpOnceItIsClosed(t *testing.T) {
	w, e := cutOff(t)
	set := func(open int) {
		w.caches.Alter(volume.NameOf(ref), func(s *cache.State) { s.Open = open })
	}
	set(1)
	if err := abandon(e, 3); code(err) != escache.CodeDeviceOpen {
		t.Fatalf("while it is mounted: %v", err)
	}
	if st := w.minors[100]; st.Suspended || st.Disk != drbd.Diskless {
		t.Fatalf("its I/O does not fail: %+v", st)
	}
	if _, err := connectWith(e, 9); code(err) != escache.CodeNotFound {
		t.Errorf("connect meanwhile: %v", err)
	}
	e = w.restarted()
	e.finishAbandoned(t.Context())
	if w.connected() == 0 {
		t.Fatal("removed under whoever has it open")
	}
	set(0)
	w.recordErr = errors.New("away") // the decision stands
	e.finishAbandoned(t.Context())
	if len(w.maps)+w.connected() > 0 || w.minors[100].Disk != drbd.Outdated {
		t.Errorf("left: %q, %+v", w.left(), w.minors[100])
	}
}

// TestADeviceWhoseProcessWasKilledIsGivenUp: the process that serves the device is killed with the users. A
// user that waits for it has the device open until that I/O fails.
func TestADeviceWhoseProcessWasKilledIsGivenUp(t *testing.T) {
	w, e := cutOff(t)
	w.caches.Alter(volume.NameOf(ref), func(s *cache.State) { s.Open, s.Unserved = 1, "its process has died" })
	if err := abandon(e, 3); err != nil {
		t.Fatal(err)
	}
	if len(w.maps)+w.connected() > 0 || w.minors[100].Disk != drbd.Outdated {
		t.Errorf("left: %q, %+v", w.left(), w.minors[100])
	}
}

// TestAFlushThatIsStuckInFrozenIOIsFreed: the flush has the volume, and only the end of the frozen
// I/O ends it.
func TestAFlushThatIsStuckInFrozenIOIsFreed(t *testing.T) {
	w, e := cutOff(t)
	release, err := e.Lock(ref, "flush")
	if err != nil {
		t.Fatal(err)
	}
	w.ioFailed = release
	if err := abandon(e, 3); err != nil {
		t.Fatal(err)
	}
	if len(w.maps)+w.connected() > 0 || w.minors[100].Disk != drbd.Outdated {
		t.Errorf("left: %q", w.left())
	}
}

// TestADeviceWithACommandThatHangsInFrozenIOIsGivenUp: the verb that began the command has ended, and I/O has to fail before
// the command does.
func TestADeviceWithACommandThatHangsInFrozenIOIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t)
		e := m.start()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 3); err != nil {
			t.Fatal(err)
		}
		m.freeze(volume.NameOf(ref))
		m.takenOver(4)
		ended := make(chan error)
		m.breaker.Trip(volume.NameOf(ref), false, &command.StuckError{Command: "dmsetup suspend"}, ended)
		end := sync.OnceFunc(func() { close(ended) })
		defer end()
		m.ioFailed = func() { end(); synctest.Wait() }
		if err := abandon(e, 4); err != nil {
			t.Fatal(err)
		}
		if len(m.maps)+len(m.devices) > 0 {
			t.Errorf("left: %v, %v", m.maps, m.devices)
		}
	})
}

// TestTheArbiterIsAskedAgainWhateverHangsInFrozenIO: those verbs end only when I/O goes on. The others may be changing the link.
func TestTheArbiterIsAskedAgainWhateverHangsInFrozenIO(t *testing.T) {
	for verb, asks := range map[string]bool{
		"flush": true, "hold": true, "mode": true, "options": true, "resize": true, "trim": true, host.WorkDrain: true, "": true,
		"put_replica": false, "stop": false, "abandon": false, host.WorkReconnect: false,
	} {
		t.Run(verb, func(t *testing.T) {
			w, e := cutOff(t)
			if verb != "" {
				if _, err := e.Lock(ref, verb); err != nil {
					t.Fatal(err)
				}
			}
			since, before := map[string]time.Time{}, len(w.steps)
			e.watcher.AskAll(t.Context(), since)
			if steps := w.steps[before:]; len(steps) > 0 {
				t.Errorf("at once it did %q", steps)
			}
			since[volume.NameOf(ref)] = e.Now().Add(-time.Minute)
			e.watcher.AskAll(t.Context(), since)
			if steps := w.steps[before:]; slices.Equal(steps, []string{"disconnect", "connect"}) != asks || !asks && len(steps) > 0 {
				t.Errorf("it did %q", steps)
			}
		})
	}
}

func TestABusyVolumeIsNotTouchedWithoutProofOrWithoutNeed(t *testing.T) {
	for name, change := range map[string]func(*world){
		"no proof":   func(w *world) { w.record.Outdated = nil },
		"not frozen": func(w *world) { st := w.minors[100]; st.Suspended = false; w.minors[100] = st },
	} {
		w, e := cutOff(t)
		change(w)
		if _, err := e.Lock(ref, "flush"); err != nil {
			t.Fatal(err)
		}
		steps := len(w.steps)
		refusals := []escache.Code{escache.CodeBusy, escache.CodeNotSuperseded}
		if err := abandon(e, 3); !slices.Contains(refusals, code(err)) || len(w.steps) != steps {
			t.Errorf("%s: %v, %q", name, err, w.steps[steps:])
		}
	}
}

func TestADeleteOrAPutOfWhatIsBeingGivenUpFinishesThatFirst(t *testing.T) {
	for name, do := range map[string]func(e *Engine) error{
		"delete": func(e *Engine) error { return e.DeleteReplica(t.Context(), ref, nil) },
		"put":    func(e *Engine) error { return e.PutReplica(t.Context(), putReq) },
	} {
		w, e := cutOff(t)
		w.killAt = len(w.steps) + 2 // right after the decision
		if died, err := dieAt(func() error { return abandon(e, 3) }); !died {
			t.Fatal(name, err)
		}
		w.caches.Reboot() // the host was switched off and on again
		w.maps = nil
		w.minors[100] = cut(drbd.Consistent)
		w.failAt, w.killAt = 0, 0
		e = w.engine()
		v, err := volume.Parse(w.lvs[volume.NameOf(ref)])
		if err != nil || v.Phase != volume.Abandoning {
			t.Fatalf("%s: %+v, %v", name, v, err)
		}
		e.Volumes.Put(v)
		if err := do(e); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !w.outdated[volume.NameOf(ref)] {
			t.Errorf("%s: the copy was not marked", name)
		}
	}
}

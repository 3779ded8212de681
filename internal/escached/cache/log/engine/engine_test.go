package engine

import (
	"cmp"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/escached/devmapper"
	"github.com/escache/escache-csi/internal/unixsocket"
)

var id = cache.Identity{Pool: "rbd", Image: "image", ImageID: "10ab"}

// assembled is a host with a cache whose block 1 was written.
func assembled(t *testing.T) (*host, *Engine) {
	t.Helper()
	h := newHost(t)
	e := h.engine()
	must(t, e.Wipe(t.Context(), h.Spec().Disk))
	must(t, e.Prepare(t.Context(), h.Spec(), id, false))
	_, err := e.Assemble(t.Context(), h.Spec())
	must(t, err)
	h.write(1, 1)
	return h, e
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func filled(with byte) []byte {
	block := make([]byte, cache.BlockBytes)
	for i := range block {
		block[i] = with
	}
	return block
}

func (h *host) write(number int64, with byte) {
	h.t.Helper()
	must(h.t, h.try(number, with))
}

func (h *host) try(number int64, with byte) error {
	f, err := h.Open("/dev/mapper/" + front(volume))
	if err != nil {
		return err
	}
	_, err = f.WriteAt(filled(with), number*cache.BlockBytes)
	return errors.Join(err, f.Close())
}

func (h *host) holds(number int64, want byte) {
	h.t.Helper()
	f, err := h.Open("/dev/mapper/" + front(volume))
	must(h.t, err)
	got := make([]byte, cache.BlockBytes)
	_, err = f.ReadAt(got, number*cache.BlockBytes)
	must(h.t, errors.Join(err, f.Close()))
	if !slices.Equal(got, filled(want)) {
		h.t.Errorf("block %d has %d, not %d", number, got[0], want)
	}
}

func stateOf(t *testing.T, e *Engine) cache.State {
	t.Helper()
	all, err := e.States(t.Context(), volume)
	must(t, err)
	state, there := all[volume]
	if !there {
		t.Fatal("it is not told of at all")
	}
	return state
}

func TestADeviceWhoseProcessHasDiedIsThereAndGoesOnAfterRevive(t *testing.T) {
	for name, revive := range map[string]func(e *Engine) error{
		"Revive": func(e *Engine) error { return e.Revive(t.Context(), volume) },
		"Resume": func(e *Engine) error { return e.Resume(t.Context(), volume) },
	} {
		h, e := assembled(t)
		must(t, e.SetOptions(t.Context(), volume, cache.Options{HighWatermark: 70, LowWatermark: 30, MaxAgeSeconds: 60, StrictOrder: true}))
		must(t, e.SetMode(t.Context(), volume, cache.Writethrough))
		want := stateOf(t, e)
		if want.Measures == nil || want.Measures.LogBytes <= 0 || want.Measures.LogBytes >= diskBytes {
			t.Errorf("%s: its process measures %+v", name, want.Measures)
		}
		h.processes[volume].die()
		e = h.engine() // of another escached
		if s := stateOf(t, e); s.Unserved == "" || s.Known || s.Clean() || s.Path != want.Path || s.Options != want.Options || s.Held ||
			s.Measures != nil {
			t.Errorf("%s: without its process it is %+v", name, s)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- h.try(2, 2) }()
		must(t, revive(e))
		must(t, <-waiting)
		if order := h.processes[volume].options.Order; order != control.Strict {
			t.Errorf("%s: the next process writes back in the order %q", name, order)
		}
		h.holds(1, 1)
		h.holds(2, 2)
		if s := stateOf(t, e); s.Unserved != "" || !s.Known || s.Options != want.Options {
			t.Errorf("%s: afterwards it is %+v, and was %+v", name, s, want)
		}
		if starts := h.starts; starts != 2 {
			t.Errorf("%s: %d processes were started", name, starts)
		}
		must(t, revive(e))
		if h.starts != 2 {
			t.Errorf("%s: a device that is served was revived", name)
		}
	}
}

func TestAHoldOutlivesTheProcessAndRevive(t *testing.T) {
	h, e := assembled(t)
	must(t, e.Hold(t.Context(), volume, false))
	h.processes[volume].die()
	must(t, e.Revive(t.Context(), volume))
	if s := stateOf(t, e); !s.Held {
		t.Errorf("it is %+v", s)
	}
	h.write(1, 2) // the log takes it
	if got := h.origin[cache.BlockBytes]; !slices.Equal(got, filled(1)) {
		t.Errorf("the held image has %d", got[0])
	}
	must(t, e.Resume(t.Context(), volume))
	if s := stateOf(t, e); s.Held {
		t.Errorf("after Resume it is %+v", s)
	}
}

func TestALogThatHasFailedGetsAnotherProcess(t *testing.T) {
	h, e := assembled(t)
	h.processes[volume].breakLog()
	if s := stateOf(t, e); s.Unserved == "" || s.Known {
		t.Errorf("it is %+v", s)
	}
	must(t, e.Revive(t.Context(), volume))
	h.holds(1, 1)
	h.processes[volume].breakLog()
	must(t, e.Remove(t.Context(), volume))
	if len(h.processes)+len(h.nbd)+len(h.fronts) > 0 {
		t.Errorf("left: %v, %v, %v", h.processes, h.nbd, h.fronts)
	}
}

func TestRemoveTakesAwayADeviceWhoseProcessIsDead(t *testing.T) {
	h, e := assembled(t)
	h.processes[volume].die()
	must(t, e.Remove(t.Context(), volume))
	if all, err := e.States(t.Context(), ""); err != nil || len(all) > 0 || len(h.nbd)+len(h.fronts) > 0 {
		t.Errorf("left: %+v, %v, %v, %v", all, err, h.nbd, h.fronts)
	}
	if _, err := os.Stat(e.plans.memory(volume)); err != nil {
		t.Errorf("what the process had answered is gone: %v", err)
	}
	_, err := e.Assemble(t.Context(), h.Spec())
	must(t, err)
	h.holds(1, 1)
}

func TestFailEndsTheIOThatWaitsForTheProcess(t *testing.T) {
	for name, before := range map[string]func(h *host){
		"dead":    func(h *host) { h.processes[volume].die() },
		"serving": func(*host) {},
	} {
		h, e := assembled(t)
		before(h)
		f, err := h.Open(devmapper.Node(front(volume)))
		must(t, err)
		waiting := make(chan error, 1)
		if h.processes[volume] == nil {
			go func() {
				_, err := f.WriteAt(filled(2), 2*cache.BlockBytes)
				waiting <- err
			}()
		}
		must(t, e.Fail(t.Context(), volume))
		if h.processes[volume] != nil {
			t.Errorf("%s: its process lives", name)
		} else if name == "dead" && <-waiting == nil {
			t.Errorf("%s: a write succeeds that nothing serves", name)
		}
		if _, err := f.ReadAt(make([]byte, cache.BlockBytes), 0); err == nil {
			t.Errorf("%s: a device that has failed is read", name)
		}
		if err := e.Remove(t.Context(), volume); !errors.Is(err, cache.ErrOpen) {
			t.Errorf("%s: removed while it is open: %v", name, err)
		}
		must(t, f.Close())
		must(t, e.Fail(t.Context(), volume))
		must(t, e.Remove(t.Context(), volume))
		if len(h.nbd)+len(h.fronts) > 0 {
			t.Errorf("%s: left: %v, %v", name, h.nbd, h.fronts)
		}
	}
}

// TestStopRefusesWhileOnlyTheMemoryHasAWrite: the write was answered and never flushed, and then the
// process was killed. The disk alone says that nothing is dirty.
func TestStopRefusesWhileOnlyTheMemoryHasAWrite(t *testing.T) {
	h, e := assembled(t)
	must(t, e.WriteBack(t.Context(), volume))
	p := h.processes[volume]
	must(t, p.device.Write(2, filled(2)))
	p.die()
	if dirty, err := e.Dirty(t.Context(), h.Spec().Disk); err != nil || dirty != 0 {
		t.Fatalf("%d bytes are dirty on the disk, %v", dirty, err)
	}
	if err := e.Stop(t.Context(), volume); !errors.Is(err, cache.ErrUnserved) {
		t.Fatalf("Stop: %v", err)
	}
	e = h.engine() // of another escached
	must(t, e.Resume(t.Context(), volume))
	h.holds(2, 2)
	if s := stateOf(t, e); s.Held || s.Clean() {
		t.Errorf("afterwards it is %+v", s)
	}
	must(t, e.WriteBack(t.Context(), volume))
	must(t, e.Stop(t.Context(), volume))
	must(t, e.Stop(t.Context(), volume)) // again: nothing is there
	if all, err := e.States(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

func TestRemoveEndsAProcessThatDoesNotServeYet(t *testing.T) {
	h, e := assembled(t)
	must(t, h.processes[volume].server.Close()) // as while it recovers its log
	must(t, e.Remove(t.Context(), volume))
	if len(h.processes)+len(h.nbd)+len(h.fronts) > 0 {
		t.Errorf("left: %v, %v, %v", h.processes, h.nbd, h.fronts)
	}
	_, err := e.Assemble(t.Context(), h.Spec())
	must(t, err)
	h.holds(1, 1)
}

// TestAProcessThatHangsIsToldSoAndIsNotReplaced: it may have what the log has not.
func TestAProcessThatHangsIsToldSoAndIsNotReplaced(t *testing.T) {
	h, e := assembled(t)
	p := h.processes[volume]
	must(t, p.server.Close())
	listener, err := unixsocket.Listen(e.plans.socket(volume), unixsocket.Modes{Directory: 0o700, Socket: 0o600}) // accepts, and never answers
	must(t, err)
	defer listener.Close()
	begun := time.Now()
	s := stateOf(t, e)
	if s.Unserved == "" || s.Known || time.Since(begun) > 20*time.Second {
		t.Errorf("it is %+v, after %s", s, time.Since(begun))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if err := e.Revive(ctx, volume); !errors.Is(err, cache.ErrUnserved) {
		t.Errorf("Revive: %v", err)
	}
	if err := e.Remove(ctx, volume); !errors.Is(err, cache.ErrUnserved) {
		t.Errorf("Remove: %v", err)
	}
	if h.starts != 1 || h.processes[volume] != p {
		t.Error("there is another process")
	}
}

func TestALogThatHasLostDataIsNotServed(t *testing.T) {
	h, e := assembled(t)
	for n := byte(2); n < 6; n++ {
		h.write(int64(n), n)
	}
	must(t, e.Remove(t.Context(), volume))
	h.disk[cache.HeaderBytes+superblocks+cache.BlockBytes] ^= 1 // the data of the first record
	if n, err := e.Dirty(t.Context(), h.Spec().Disk); !errors.Is(err, cache.ErrCorrupt) {
		t.Errorf("%d bytes are dirty, %v", n, err)
	}
	if err := e.Check(t.Context(), h.Spec().Disk, id, true); !errors.Is(err, cache.ErrCorrupt) {
		t.Errorf("Check, before a promotion that puts the other copy on record as outdated: %v", err)
	}
	if _, err := e.Assemble(t.Context(), h.Spec()); !errors.Is(err, cache.ErrCorrupt) {
		t.Errorf("Assemble: %v", err)
	}
	if all, err := e.States(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

// TestALogThatTakesTooLongToCheckIsNotInOrder: DRBD would take a damaged copy for the source of a resync.
func TestALogThatTakesTooLongToCheckIsNotInOrder(t *testing.T) {
	h, e := assembled(t)
	must(t, e.Remove(t.Context(), volume))
	for _, h.queryErr = range []error{&command.TimeoutError{Command: "read the log", After: time.Minute}, &command.StuckError{}} {
		if err := e.Check(t.Context(), h.Spec().Disk, id, true); !errors.Is(err, cache.ErrUnchecked) || errors.Is(err, cache.ErrCorrupt) {
			t.Errorf("after %v: %v", h.queryErr, err)
		}
	}
	h.queryErr = errors.New("input/output error")
	if err := e.Check(t.Context(), h.Spec().Disk, id, true); err == nil || errors.Is(err, cache.ErrCorrupt) {
		t.Errorf("a log that cannot be read: %v", err)
	}
}

// TestALongLogHasTimeToBeRead: 100 MiB/s, shared by four.
func TestALongLogHasTimeToBeRead(t *testing.T) {
	h, e := assembled(t)
	must(t, e.Remove(t.Context(), volume))
	const bytes = 100 << 30
	h.bytes = bytes
	const want = bytes / (25 << 20) * time.Second
	if got := e.ReadTime(bytes); got < want {
		t.Errorf("%s for 100 GiB", got)
	}
	must(t, e.Check(t.Context(), h.Spec().Disk, id, true))
	_, err := e.Dirty(t.Context(), h.Spec().Disk)
	must(t, err)
	if len(h.queried) != 2 || slices.Min(h.queried) < want {
		t.Errorf("the children had %v", h.queried)
	}
}

// readingLong is a host whose process reads its log for longer than Assemble waits.
func readingLong(t *testing.T) (*host, *Engine) {
	t.Helper()
	h, e := assembled(t)
	must(t, e.Remove(t.Context(), volume))
	h.readsLong = true
	h.starts, h.kills = 0, 0
	ctx, cancel := context.WithTimeout(t.Context(), 10*answerPoll)
	defer cancel()
	if _, err := e.Assemble(ctx, h.Spec()); !errors.Is(err, cache.ErrRecovering) || !errors.Is(err, cache.ErrUnserved) {
		t.Fatalf("Assemble: %v", err)
	}
	return h, e
}

func TestAProcessThatReadsALongLogIsWaitedForAgain(t *testing.T) {
	h, e := readingLong(t)
	if s := stateOf(t, e); s.Unserved != reading || s.Known || !s.Held {
		t.Errorf("it is %+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*answerPoll)
	defer cancel()
	if err := e.Resume(ctx, volume); !errors.Is(err, cache.ErrRecovering) {
		t.Errorf("Resume while it reads: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end() // while it is asked
	if _, err := e.answer(ended, volume); !errors.Is(err, cache.ErrRecovering) {
		t.Errorf("a question that the end of the call has cut off: %v", err)
	}
	must(t, h.processes[volume].listen())
	e = h.engine() // of another escached
	must(t, e.Resume(t.Context(), volume))
	h.holds(1, 1)
	if h.starts != 1 || h.kills != 0 {
		t.Errorf("%d processes were started, and %d killed", h.starts, h.kills)
	}
}

func TestAProcessThatReadsALongLogCanBeRemoved(t *testing.T) {
	h, e := readingLong(t)
	must(t, e.Remove(t.Context(), volume))
	if all, err := e.States(t.Context(), ""); err != nil || len(all)+len(h.processes)+len(h.nbd) > 0 {
		t.Errorf("left: %v, %v, %v, %v", all, err, h.processes, h.nbd)
	}
}

// TestALossThatNobodyWaitedForIsTold: another process would read the log again, and so for ever.
func TestALossThatNobodyWaitedForIsTold(t *testing.T) {
	h, e := readingLong(t)
	h.processes[volume].die()
	clear(h.nbd)
	h.said[volume] = "escache-cache: record 7 is damaged: " + process.ErrLosses.Error()
	for what, err := range map[string]error{"Revive": e.Revive(t.Context(), volume), "Resume": e.Resume(t.Context(), volume)} {
		if !errors.Is(err, cache.ErrCorrupt) || h.starts != 1 {
			t.Errorf("%s: %v, after %d starts", what, err, h.starts)
		}
	}
	must(t, e.Remove(t.Context(), volume))
	h.readsLong = false
	_, err := e.Assemble(t.Context(), h.Spec())
	must(t, err)
	h.holds(1, 1)
}

func TestAPlanOfAnEarlierStartOfTheHostCountsAsNone(t *testing.T) {
	_, e := assembled(t)
	e.plans.boot = "another one"
	if all, err := e.States(t.Context(), ""); err != nil || len(all) > 0 {
		t.Errorf("it is told of: %+v, %v", all, err)
	}
	if err := e.Revive(t.Context(), volume); !errors.Is(err, cache.ErrAbsent) {
		t.Errorf("Revive: %v", err)
	}
}

func TestADamagedPlanIsTheTroubleOfItsVolumeOnly(t *testing.T) {
	_, e := assembled(t)
	const other = volume + "-2"
	must(t, os.WriteFile(e.plans.file(other, planSuffix), []byte("{"), 0o600))
	all, err := e.States(t.Context(), "escache-")
	must(t, err)
	if s := all[volume]; s.Unserved != "" || !s.Known {
		t.Errorf("the other volume is %+v", s)
	}
	if s, there := all[other]; !there || s.Unserved == "" || s.Clean() || s.Path == "" || s.Options.Mode == "" {
		t.Errorf("the volume with the damaged plan is %+v, %v", s, there)
	}
	if err := e.Revive(t.Context(), other); err == nil || errors.Is(err, cache.ErrAbsent) {
		t.Errorf("Revive: %v", err)
	}
	must(t, e.Remove(t.Context(), other))
	if all, err := e.States(t.Context(), other); err != nil || len(all) > 0 {
		t.Errorf("after Remove: %+v, %v", all, err)
	}
}

func TestWithoutTheDriverThereIsNoEngine(t *testing.T) {
	h := newHost(t)
	engines := cache.Engines{"log": h.Engine()}
	if err := engines.CanRun(t.Context(), "log"); err != nil {
		t.Error(err)
	}
	h.noKernel = true
	if err := engines.CanRun(t.Context(), "log"); !errors.Is(err, cache.ErrNoEngine) {
		t.Errorf("without NBD: %v", err)
	}
}

// unheard is a device-mapper whose first answer to a resume is lost.
type unheard struct {
	*host

	lost bool
}

func (u *unheard) Resume(ctx context.Context, name, device string) error {
	err := u.host.Resume(ctx, name, device)
	if !u.lost {
		u.lost = true
		return cmp.Or(err, context.DeadlineExceeded)
	}
	return err
}

// TestADeviceThatHasGrownDoesNotShrink: its users may have seen the new size although Resize has failed.
func TestADeviceThatHasGrownDoesNotShrink(t *testing.T) {
	h, _ := assembled(t)
	e := New(Config{
		Mapper: &unheard{host: h}, Disks: (*hostDisks)(h), Processes: (*hostProcesses)(h), Kernel: (*hostKernel)(h), Dir: h.dir, Boot: "this one",
	})
	h.Grow(2 << 20)
	if err := e.Resize(t.Context(), volume, 2<<20); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Resize: %v", err)
	}
	must(t, e.Resume(t.Context(), volume))
	if got := stateOf(t, e).Bytes; got != 2<<20 {
		t.Errorf("it has %d bytes", got)
	}
}

package writecache

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

var identity = cache.Identity{Pool: "rbd", Image: "v1", ImageID: "10ab"}

// assembled returns a host with a new cache, and what the engine did since.
func assembled(t *testing.T) (*host, *Engine) {
	t.Helper()
	h := newHost(t)
	e := New(h, (*hostLoops)(h), (*hostDisks)(h))
	if err := e.Prepare(t.Context(), h.Spec(), identity, false); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Assemble(t.Context(), h.Spec()); err != nil {
		t.Fatal(err)
	}
	h.steps = nil
	return h, e
}

func (h *host) did(what string, want ...string) {
	h.t.Helper()
	if !slices.Equal(h.steps, want) {
		h.t.Errorf("%s: the steps were %q, not %q", what, h.steps, want)
	}
	h.steps = nil
}

func (h *host) seen(e *Engine) cache.State {
	h.t.Helper()
	all, err := e.States(h.t.Context(), volume)
	if err != nil || len(all) != 1 {
		h.t.Fatalf("states %v, %v", all, err)
	}
	return all[volume]
}

func TestTheHeaderIsWrittenBeforeAndAfterFormatting(t *testing.T) {
	h := newHost(t)
	e := New(h, (*hostLoops)(h), (*hostDisks)(h))
	for range 2 { // the second time nothing is done
		if err := e.Prepare(t.Context(), h.Spec(), identity, false); err != nil {
			t.Fatal(err)
		}
	}
	h.did("Prepare", "write 4096 bytes at 0", "create escache-v-new", "remove escache-v-new", "write 4096 bytes at 0")
}

// The kernel takes what it finds for a cache and does not format it.
func TestWhatAnInterruptedFormattingLeftIsFormattedAnew(t *testing.T) {
	h := newHost(t)
	e := New(h, (*hostLoops)(h), (*hostDisks)(h))
	h.BreakAt(3, false) // the device on which the kernel has formatted is not removed
	if err := e.Prepare(t.Context(), h.Spec(), identity, false); err == nil || !h.Broke() {
		t.Fatal("the test did not break the formatting")
	}
	binary.LittleEndian.PutUint64(h.entry(0), 7) // half of a table: block 0 is dirty
	if err := errors.Join(e.Remove(t.Context(), volume), e.Prepare(t.Context(), h.Spec(), identity, false)); err != nil {
		t.Fatal(err)
	}
	if n := h.dirtyBlocks(); n != 0 {
		t.Errorf("a new cache has %d dirty blocks", n)
	}
}

func TestUsersGetADeviceBehindALoop(t *testing.T) {
	h, e := assembled(t)
	for range 2 { // what is complete is left alone
		if err := e.Resume(t.Context(), volume); err != nil {
			t.Fatal(err)
		}
	}
	h.did("Resume")
	if f := h.devices[volume+"-front"]; f.target != "linear" || f.table != "/dev/loop7 0" || f.sectors != 2048 {
		t.Errorf("users get %+v", f)
	}
	h.devices[volume+"-front"].open = 2
	if s := h.seen(e); s.Path != "/dev/mapper/escache-v-front" || s.Open != 2 || s.Held {
		t.Errorf("seen as %+v", s)
	}
	h.devices[volume+"-front"].suspended = true
	if s := h.seen(e); !s.Held {
		t.Error("the suspension of what users get is not seen")
	}
}

func TestWhatIsInFrontIsNoUser(t *testing.T) {
	h, e := assembled(t)
	delete(h.devices, volume+"-front") // killed while it was removed, or made
	if s := h.seen(e); s.Open != 0 {
		t.Errorf("open %d times, and nobody has it", s.Open)
	}
	h.devices[volume].open++
	if s := h.seen(e); s.Open != 1 {
		t.Errorf("open %d times, and one has it", s.Open)
	}
}

// Another host has the volume. The I/O that a hold keeps fails, and none of it reaches the image.
func TestFailEndsTheIOThatAHoldKeeps(t *testing.T) {
	h, e := assembled(t)
	if err := e.Fail(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	h.did("Fail without a hold")
	if err := e.Hold(t.Context(), volume, true); err != nil {
		t.Fatal(err)
	}
	h.steps = nil
	for range 2 { // the second time nothing is left to do
		if err := e.Fail(t.Context(), volume); err != nil {
			t.Fatal(err)
		}
	}
	h.did("Fail", "load escache-v-front", "resume escache-v-front")
	if f := h.devices[volume+"-front"]; f.target != "error" || f.suspended || f.sectors != 2048 || !h.devices[volume].suspended {
		t.Errorf("users have %+v, before %+v", f, h.devices[volume])
	}
	if s := h.seen(e); s.Path != "/dev/mapper/escache-v-front" {
		t.Errorf("seen as %+v", s)
	}
	if err := e.Remove(t.Context(), volume); err != nil || len(h.devices)+len(h.loops) != 0 {
		t.Errorf("%v, left %v %v", err, h.devices, h.loops)
	}
}

func TestAllOfItIsRemovedFrontFirst(t *testing.T) {
	h, e := assembled(t)
	h.devices[volume+"-new"] = &dmDevice{target: target, table: h.devices[volume].table} // left by a killed Prepare
	if err := e.Remove(t.Context(), volume); err != nil || len(h.devices)+len(h.loops) != 0 {
		t.Errorf("%v, left %v %v", err, h.devices, h.loops)
	}
	h.did("Remove", "remove escache-v-front", "loop off", "remove escache-v", "remove escache-v-new")
}

func TestADeviceWithoutATableIsRemovedAndIsNoCache(t *testing.T) {
	h := newHost(t)
	e := New(h, (*hostLoops)(h), (*hostDisks)(h))
	h.devices[volume] = &dmDevice{} // dmsetup was killed while it made it
	if all, err := e.States(t.Context(), volume); err != nil || len(all) > 0 {
		t.Errorf("%v, %v", all, err)
	}
	if err := e.Remove(t.Context(), volume); err != nil || len(h.devices) > 0 {
		t.Errorf("%v, left %v", err, h.devices)
	}
}

func TestAHoldSuspendsWhatUsersGetFirstAndResumesItLast(t *testing.T) {
	h, e := assembled(t)
	if err := errors.Join(e.Hold(t.Context(), volume, false), e.Resume(t.Context(), volume)); err != nil {
		t.Fatal(err)
	}
	h.did("Hold and Resume", "suspend escache-v-front", "message escache-v flush_on_suspend", "suspend escache-v",
		"load escache-v", "resume escache-v", "resume escache-v-front")
}

func TestAChangeLoadsATableBeforeItResumes(t *testing.T) {
	h, e := assembled(t)
	h.devices[volume].failed = true
	if err := e.Retry(t.Context(), volume); err != nil {
		t.Fatal(err)
	}
	h.did("Retry", "suspend --noflush escache-v", "load escache-v", "resume escache-v")
	if err := e.SetMode(t.Context(), volume, cache.Writethrough); err != nil {
		t.Fatal(err)
	}
	h.did("SetMode", "suspend --noflush escache-v", "load escache-v", "resume escache-v")
	for range 2 { // the second time nothing is done
		if err := e.SetOptions(t.Context(), volume, cache.Options{MaxAgeSeconds: 30}); err != nil {
			t.Fatal(err)
		}
	}
	h.did("SetOptions", "suspend --noflush escache-v", "load escache-v", "resume escache-v")
	h.Grow(2 << 20)
	if err := e.Resize(t.Context(), volume, 2<<20); err != nil {
		t.Fatal(err)
	}
	h.did("Resize", "suspend --noflush escache-v", "load escache-v", "resume escache-v", "loop of 2097152 bytes",
		"suspend --noflush escache-v-front", "load escache-v-front", "resume escache-v-front")
}

func TestAChangeThatFailsPutsTheOldTableBack(t *testing.T) {
	h, e := assembled(t)
	h.BreakAt(2, false) // the load
	if err := e.SetMode(t.Context(), volume, cache.Writethrough); err == nil {
		t.Fatal("it did not fail")
	}
	h.did("SetMode", "suspend --noflush escache-v", "load escache-v", "load escache-v", "resume escache-v")
	if s := h.seen(e); s.Held || s.Options.Mode != cache.Writeback {
		t.Errorf("it is %+v", s)
	}
}

func TestADeviceThatFailsAtOnceIsNotHandedOut(t *testing.T) {
	h := newHost(t)
	e := New(failing{h}, (*hostLoops)(h), (*hostDisks)(h))
	if err := e.Prepare(t.Context(), h.Spec(), identity, false); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Assemble(t.Context(), h.Spec()); !errors.Is(err, cache.ErrFailed) {
		t.Errorf("got %v", err)
	}
	if len(h.devices)+len(h.loops) > 0 {
		t.Errorf("left %v %v", h.devices, h.loops)
	}
}

// failing is a kernel in which every cache has an error from the start.
type failing struct{ *host }

func (f failing) Create(ctx context.Context, v, name, table string) error {
	err := f.host.Create(ctx, v, name, table)
	if d := f.devices[name]; d != nil {
		d.failed = d.target == target
	}
	return err
}

func TestTheLayersKeepTheirErrors(t *testing.T) {
	if err := opened(devmapper.ErrOpen); !errors.Is(err, cache.ErrOpen) || !errors.Is(err, devmapper.ErrOpen) {
		t.Error(err)
	}
	if err := opened(nil); err != nil {
		t.Error(err)
	}
}

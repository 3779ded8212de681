package engine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/engine/space"
	"github.com/escache/escache-csi/internal/escached/engine/standby"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func TestPollsLookAtNothingButTheKernelsTables(t *testing.T) {
	w := newWorld(t)
	e := w.restarted()
	for _, verb := range verbsOfALife()[:2] {
		if err := verb.do(e); err != nil {
			t.Fatal(err)
		}
	}
	before := w.looked()
	for range 10 {
		if _, err := e.Node(t.Context()); err != nil {
			t.Fatal(err)
		}
		status, err := e.Status(t.Context(), nil)
		if err != nil || len(status.Volumes) != 1 || status.Volumes[0].ClientAddress != w.image.ClientAddress {
			t.Fatalf("%+v, %v", status, err)
		}
	}
	if w.looked() != before {
		t.Errorf("20 polls read LVM's report or a disk %d times", w.looked()-before)
	}
}

func TestTheRoomIsTrueAfterEveryVerbThatChangesIt(t *testing.T) {
	w := newWorld(t)
	const others = 8 << 20 // what somebody else has in the group
	w.free -= others
	e := w.restarted()
	free := func() int64 {
		n, err := e.Node(t.Context())
		if err != nil || !n.Healthy {
			t.Fatalf("%+v, %v", n, err)
		}
		if sum := n.CacheAllocatedBytes + n.CacheFreeBytes; sum != n.CacheCapacityBytes-others {
			t.Errorf("allocated and free are %d of %d bytes, and others have %d", sum, n.CacheCapacityBytes, others)
		}
		return n.CacheFreeBytes
	}
	whole := free()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if got := free(); got != whole-putReq.CacheBytes {
		t.Errorf("after a replica of %d bytes %d of %d are free", putReq.CacheBytes, got, whole)
	}
	w.spaceErr = errors.New("vgs took too long") // a busy host: the arithmetic has to do
	if err := e.DeleteReplica(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if got := free(); got != whole {
		t.Errorf("after it was deleted %d of %d bytes are free", got, whole)
	}
}

// lateStore is an LVM that is killed after it has removed a volume, before it can say so.
type lateStore struct {
	host.Store

	late bool
}

func (s *lateStore) Remove(ctx context.Context, name string) (bool, error) {
	was, err := s.Store.Remove(ctx, name)
	if s.late {
		s.late = false
		return false, errors.New("lvremove took too long")
	}
	return was, err
}

func TestSpaceThatWasFreedIsCountedOnce(t *testing.T) {
	w := newWorld(t)
	w.free -= 8 << 20 // others have that
	e := w.restarted()
	e.Store = &lateStore{Store: e.Store, late: true}
	whole, _, _ := e.space.Latest()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if err := e.DeleteReplica(t.Context(), ref, nil); err == nil {
		t.Fatal("the test did not break the removal")
	}
	_ = e.space.Refresh(t.Context())
	if err := e.DeleteReplica(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if now, _, err := e.space.Latest(); err != nil || now.Free != whole.Free {
		t.Errorf("%d bytes are free, and before the replica there were %d: %v", now.Free, whole.Free, err)
	}
}

func TestAHostThatCannotReadItsGroupForLongIsNotHealthy(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if n, _ := e.Node(t.Context()); n.Healthy {
		t.Error("healthy before anything was read")
	}
	e = w.restarted()
	begin := time.Now()
	w.spaceErr = errors.New("no answer")
	_ = e.space.Refresh(t.Context())
	if n, _ := e.Node(t.Context()); !n.Healthy {
		t.Errorf("one reading that failed is no trouble: %q", n.Reasons)
	}
	e.Now = func() time.Time { return begin.Add(space.TooOld + time.Minute) }
	n, _ := e.Node(t.Context())
	if n.Healthy || !strings.Contains(strings.Join(n.Reasons, " "), "no answer") || n.CacheReadSecondsAgo < int64(space.TooOld/time.Second) {
		t.Errorf("a group that cannot be read for long: %+v", n)
	}
}

func TestAStandbysDirtIsKnownToPollsOnceItWasLookedAtAndUntilItIsWrittenTo(t *testing.T) {
	w := newWorld(t)
	e := w.restarted()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.setDirty(8192)
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	dirty := func() *int64 {
		s, err := e.Status(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s.Volumes[0].DirtyBytes
	}
	if got := dirty(); got != nil {
		t.Errorf("nobody looked yet: %d", *got)
	}
	e.standbys.ScanAll(t.Context())
	if got := dirty(); got == nil || *got != 8192 {
		t.Errorf("after a look: %v", got)
	}
	looks := w.looked()
	e.standbys.ScanAll(t.Context())
	if w.looked() != looks {
		t.Error("looked at again although nothing was written")
	}
	st := w.minors[100]
	st.DiskWrittenKiB++
	w.minors[100] = st
	if got := dirty(); got != nil {
		t.Errorf("written to since: %d", *got)
	}
	// Whoever asks about this one volume gets an answer.
	e.standbys.Drop(volume.NameOf(ref))
	s, err := e.Status(t.Context(), &ref)
	if err != nil || s.Volumes[0].DirtyBytes == nil {
		t.Errorf("asked about it alone: %+v, %v", s.Volumes[0], err)
	}
	w.minors[100] = drbd.Status{Connection: "WFConnection", Role: drbd.Secondary, Disk: drbd.UpToDate}
	if got := dirty(); got != nil {
		t.Errorf("a copy that nobody calls current: %d", *got)
	}
	alone := drbd.Status{Connection: "WFConnection", Role: drbd.Secondary, Disk: drbd.UpToDate, PeerDisk: drbd.Outdated, DiskWrittenKiB: 50}
	w.minors[100], w.caches.DirtyErr = alone, errors.New("the disk does not answer")
	e.standbys.ScanAll(t.Context())
	if got := dirty(); got != nil {
		t.Errorf("after a look that failed: %d", *got)
	}
	w.caches.DirtyErr = nil
	e.Now = func() time.Time { return time.Now().Add(standby.RereadAfter + time.Minute) }
	e.standbys.ScanAll(t.Context())
	if got := dirty(); got == nil || *got != 8192 {
		t.Errorf("the only current copy, looked at once its disk answers again: %v", got)
	}
	st = linked(drbd.Connected, drbd.UpToDate)
	st.PeerRole, st.DiskWrittenKiB = drbd.Primary, 99
	w.minors[100] = st
	looks = w.looked()
	e.standbys.ScanAll(t.Context())
	if w.looked() != looks {
		t.Error("the standby of a running volume is looked at again and again")
	}
}

// TestTheEpochStaysOnceTheArbiterMayHaveBeenAskedWithIt: who has been told of an attachment believes that this
// host takes no earlier one any more. A refusal before that leaves the epoch as it was.
func TestTheEpochStaysOnceTheArbiterMayHaveBeenAskedWithIt(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(w *world)
		want    escache.Code
		epoch   int64
	}{
		"refused before the arbiter is asked": {func(w *world) { w.image.ImageID = "20cd" }, escache.CodeIdentityMismatch, 3},
		"image held elsewhere":                {func(w *world) { w.mapErr = krbd.ErrInUse }, escache.CodeImageInUse, 3},
		"outdated":                            {func(w *world) { w.minors[100] = cut(drbd.Outdated) }, escache.CodeOutdated, 3},
		"refused by the arbiter": {func(w *world) {
			w.promote = drbd.ErrPeerNotFenced
			w.minors[100] = cut(drbd.UpToDate)
		}, escache.CodeFencingRefused, 4},
		"nobody knows whether it is current": {func(w *world) {
			w.promote = drbd.ErrNoCurrentData
			w.minors[100] = cut(drbd.Consistent)
		}, escache.CodeFencingRefused, 4},
		"damage that is found before": {func(w *world) { clear(w.blocks("/dev/drbd100")[cache.HeaderBytes:]) }, escache.CodeCacheCorrupt, 3},
		"damage that shows when the device is made": {func(w *world) {
			w.caches.Step = func(what string) error {
				if strings.HasPrefix(what, "assemble") {
					return cache.ErrCorrupt
				}
				return w.cacheStep(what)
			}
		}, escache.CodeCacheCorrupt, 4},
		"failed after the arbiter may have been asked": {func(w *world) { w.promote = errInjected }, escache.CodeInternal, 4},
	} {
		w := newWorld(t)
		e := w.restarted()
		for _, do := range []func() error{
			func() error { return e.PutReplica(t.Context(), putReq) },
			func() error { _, err := connectWith(e, 3); return err },
			func() error { return e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}) },
		} {
			if err := do(); err != nil {
				t.Fatal(name, err)
			}
		}
		c.breakIt(w)
		if _, err := connectWith(e, 4); code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		w.caches.Step = w.cacheStep
		for _, e := range []*Engine{e, w.restarted()} {
			if v, _ := e.Volumes.Get(volume.NameOf(ref)); v.Epoch != c.epoch {
				t.Errorf("%s: the epoch is %d, want %d", name, v.Epoch, c.epoch)
			}
		}
	}
}

func TestWhatStopHasReadIsNotReadAgain(t *testing.T) {
	for what, change := range map[string]func(*world){"as it was": func(*world) {}, "written to since": func(w *world) {
		st := w.minors[100]
		st.DiskWrittenKiB++
		w.minors[100] = st
	}} {
		w := newWorld(t)
		e := w.engine()
		if err := e.PutReplica(t.Context(), putReq); err != nil {
			t.Fatal(err)
		}
		if _, err := connectWith(e, 1); err != nil {
			t.Fatal(err)
		}
		if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
			t.Fatal(err)
		}
		change(w)
		looks := w.looked()
		s, err := e.Status(t.Context(), &ref)
		if err != nil || s.Volumes[0].DirtyBytes == nil || *s.Volumes[0].DirtyBytes != 0 {
			t.Errorf("%s: %+v, %v", what, s.Volumes, err)
		}
		if again := w.looked() > looks; again != (what != "as it was") {
			t.Errorf("%s: looked at again: %v", what, again)
		}
	}
}

func TestTheNodeSaysWhatItsCachesTakeOfItsMemory(t *testing.T) {
	w := newWorld(t)
	e := w.restarted()
	node := func() escache.Node {
		n, err := e.Node(t.Context())
		if err != nil || !n.Healthy || n.ConnectableBytes == nil {
			t.Fatalf("%+v, %v", n, err)
		}
		return n
	}
	const free = 31 << 30 // 1 GiB is kept
	if n := node(); n.ConnectedBytes != 0 || n.CacheMemoryBytes != 0 || n.CacheMemoryFreeBytes != free ||
		*n.ConnectableBytes != free*cachetest.MemoryShare {
		t.Errorf("before anything is connected: %+v, connectable %d", n, *n.ConnectableBytes)
	}
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if n := node(); n.ConnectedBytes != 0 || n.CacheMemoryBytes != 0 {
		t.Errorf("a standby takes memory: %+v", n)
	}
	if _, err := connectWith(e, 1); err != nil {
		t.Fatal(err)
	}
	took := w.caches.Memory(putReq.CacheBytes)
	n := node()
	if n.ConnectedBytes != putReq.CacheBytes || n.CacheMemoryBytes != took || n.CacheMemoryFreeBytes != free-took {
		t.Errorf("connected: %+v", n)
	}
	if more := *n.ConnectableBytes - n.ConnectedBytes; w.caches.Memory(more) > free-took || w.caches.Memory(more+1<<20) <= free-took {
		t.Errorf("%d bytes more are connectable with %d bytes of memory", more, free-took)
	}
	w.memory.Available = 1 << 30
	if n := node(); *n.ConnectableBytes != n.ConnectedBytes || n.CacheMemoryFreeBytes != 0 {
		t.Errorf("only what is kept is left: %+v, connectable %d", n, *n.ConnectableBytes)
	}
	w.memoryErr = errors.New("no meminfo")
	if n, _ := e.Node(t.Context()); n.Healthy || n.ConnectableBytes != nil {
		t.Errorf("memory that cannot be read: %+v", n)
	}
}

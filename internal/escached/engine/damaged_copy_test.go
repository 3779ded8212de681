package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// damaged is a host with a replica that was used. Its superblock was damaged while the peer is away.
func damaged(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := connectWith(e, 1); err != nil {
		t.Fatal(err)
	}
	w.setDirty(4096)
	w.caches.Reboot()
	w.maps = nil
	w.minors[100] = cut(drbd.Consistent)
	clear(w.blocks("/dev/drbd100")[cache.HeaderBytes:])
	return w, w.restarted()
}

// TestADamagedCopyIsNotPromoted: a promotion without the peer puts the peer on record as outdated,
// and the peer is the one that has everything.
func TestADamagedCopyIsNotPromoted(t *testing.T) {
	w, e := damaged(t)
	before := len(w.steps)
	if _, err := connectWith(e, 2); code(err) != escache.CodeCacheCorrupt {
		t.Fatalf("got %v", err)
	}
	promoted := func(step string) bool { return strings.HasPrefix(step, "promote") }
	if slices.ContainsFunc(w.steps[before:], promoted) {
		t.Errorf("it was promoted first: %q", w.steps[before:])
	}
	if slices.Contains(w.steps[before:], "retag") {
		t.Errorf("the epoch of an attachment that was refused was on the disk for a moment: %q", w.steps[before:])
	}
	if s := statusOf(e, t); s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeCacheCorrupt || s.Epoch != 1 {
		t.Errorf("status %+v, error %+v", s, s.Error)
	}
	// The peer comes back and fills this copy.
	w.setDirty(4096)
	filled := linked(drbd.Connected, drbd.UpToDate)
	filled.DiskWrittenKiB = 4
	w.minors[100] = filled
	if s := statusOf(e, t); s.State != escache.StateStandby || s.Error != nil {
		t.Errorf("status after a resync %+v, error %+v", s, s.Error)
	}
}

// TestADamageThatShowsWhenTheCacheIsMadeIsTold also after it was looked for without a result: it takes time to look
// for it, so nobody does before something was written to the disk.
func TestADamageThatShowsWhenTheCacheIsMadeIsTold(t *testing.T) {
	for _, step := range []string{"assemble", "write header"} {
		w := withLog(t)
		e := w.engine()
		if err := putLog(e, t); err != nil {
			t.Fatal(err)
		}
		w.log.Step = func(what string) error {
			if strings.HasPrefix(what, step) {
				return cache.ErrCorrupt
			}
			return w.cacheStep(what)
		}
		if err := connectLog(e, t, 3); code(err) != escache.CodeCacheCorrupt {
			t.Fatalf("%s: %v", step, err)
		}
		for range 2 {
			if s := statusOf(e, t); s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeCacheCorrupt {
				t.Errorf("%s: status %+v, error %+v", step, s, s.Error)
			}
		}
		w.log.Step = w.cacheStep
		if err := connectLog(e, t, 3); err != nil {
			t.Fatal(err)
		}
		if s := statusOf(e, t); s.State != escache.StateConnected || s.Error != nil {
			t.Errorf("%s: connected, status %+v, error %+v", step, s, s.Error)
		}
	}
}

// TestADamagedCopyIsNotClean: the kernel would take a blank superblock for an empty cache.
func TestADamagedCopyIsNotClean(t *testing.T) {
	w, e := damaged(t)
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	s, err := e.Status(t.Context(), &ref)
	if err != nil || s.Volumes[0].DirtyBytes != nil {
		t.Errorf("%d bytes are dirty: %v", *s.Volumes[0].DirtyBytes, err)
	}
	if err := e.DeleteReplica(t.Context(), ref, nil); code(err) != escache.CodeDirtyUnknown {
		t.Errorf("deleted as clean: %v", err)
	}
}

// crashed is a host that had the volume when it lost its power, before escached starts there. Its
// copy is damaged.
func crashed(t *testing.T) *world {
	t.Helper()
	w := booted(t)
	clear(w.blocks("/dev/drbd100")[cache.HeaderBytes:])
	w.record.Outdated = nil
	return w
}

// TestADamagedCopyIsFilledByItsPeer: DRBD would take it for the newest one, and copy it.
func TestADamagedCopyIsFilledByItsPeer(t *testing.T) {
	w := crashed(t)
	before := len(w.steps)
	e := w.restarted()
	made, up := slices.Index(w.steps[before:], "create-md"), slices.Index(w.steps[before:], "attach")
	if made < 0 || up < made {
		t.Errorf("it came up with its old metadata: %q", w.steps[before:])
	}
	want := escache.OutdateSelfRequest{VolumeRef: ref, ImageID: "10ab", Node: "n1", Peer: "n2"}
	if !slices.Equal(w.told, []escache.OutdateSelfRequest{want}) {
		t.Errorf("told %+v", w.told)
	}
	if v, _ := e.Volumes.Get(volume.NameOf(ref)); v.Formatted || !v.Joined {
		t.Errorf("it counts as a copy: %+v", v)
	}
}

func TestADamagedCopyStaysDownUntilTheArbiterIsTold(t *testing.T) {
	w := crashed(t)
	w.tellErr = errors.New("connection refused")
	e := w.restarted()
	down := func() bool { _, up := w.minors[100]; return !up }
	s, err := e.Status(t.Context(), &ref)
	if err != nil || !down() || s.Volumes[0].State != escache.StateError || s.Volumes[0].Error.Code != escache.CodeCacheCorrupt {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := connectWith(e, 3); code(err) != escache.CodeCacheCorrupt || !down() {
		t.Errorf("connected: %v", err)
	}
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	e.watcher.Reconnect(t.Context(), v)
	if !down() {
		t.Error("it came up, and nobody knows that it is damaged")
	}
	w.tellErr = nil
	e.watcher.Reconnect(t.Context(), v)
	if down() || !slices.Equal(w.steps[len(w.steps)-2:], []string{"attach", "adjust"}) || !slices.Contains(w.steps, "create-md") {
		t.Errorf("it stays down: %q", w.steps)
	}
}

// TestADamagedCopyThatIsTheOnlyCurrentOneStays: what is there is all there is.
func TestADamagedCopyThatIsTheOnlyCurrentOneStays(t *testing.T) {
	w := crashed(t)
	w.tellErr = &escache.Problem{Code: escache.CodeOutdated, Detail: "the only current one"}
	before := len(w.steps)
	e := w.restarted()
	if slices.Contains(w.steps[before:], "create-md") || !slices.Contains(w.steps[before:], "attach") {
		t.Errorf("steps %q", w.steps[before:])
	}
	if v, _ := e.Volumes.Get(volume.NameOf(ref)); !v.Formatted || v.Joined {
		t.Errorf("it does not count any more: %+v", v)
	}
}

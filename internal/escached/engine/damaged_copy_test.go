package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
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
	status := func() escache.VolumeStatus {
		s, err := e.Status(t.Context(), &ref)
		if err != nil {
			t.Fatal(err)
		}
		return s.Volumes[0]
	}
	if s := status(); s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeCacheCorrupt || s.Epoch != 1 {
		t.Errorf("status %+v, error %+v", s, s.Error)
	}
	// The peer comes back and fills this copy.
	w.setDirty(4096)
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	if s := status(); s.State != escache.StateStandby || s.Error != nil {
		t.Errorf("status after a resync %+v, error %+v", s, s.Error)
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

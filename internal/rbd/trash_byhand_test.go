package rbd

import (
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// trashByHand moves an image to the trash as `rbd trash mv` does.
func trashByHand(t *testing.T, c *Cluster, ref ImageRef) {
	t.Helper()
	inPool(t, c, ref.Pool, func(io *rados.IOContext) error { return librbd.GetImage(io, ref.Name).Trash(0) })
}

// restore takes the pool's only trashed image out of the trash, as `rbd trash restore` does.
func restore(t *testing.T, c *Cluster, ref ImageRef) {
	t.Helper()
	id := trashed(t, c, ref.Pool).ID
	inPool(t, c, ref.Pool, func(io *rados.IOContext) error { return librbd.TrashRestore(io, id, ref.Name) })
}

// stays fails unless an emptier leaves the pool's only trashed image there.
func stays(t *testing.T, c *Cluster, ref ImageRef) {
	t.Helper()
	for range 2 {
		if left, err := c.EmptyTrash(t.Context(), ref.Pool); left != 1 || err == nil {
			t.Fatalf("%d are left, %v", left, err)
		}
	}
	restore(t, c, ref)
	if _, err := c.ImageInfo(t.Context(), ref); err != nil {
		t.Fatalf("it is not whole any more: %v", err)
	}
}

// TestWhatSomebodyElseMovesToTheTrashStaysThere: it may be a volume's only image, and dirty caches may belong to
// it.
func TestWhatSomebodyElseMovesToTheTrashStaysThere(t *testing.T) {
	maker, emptier, pool := openAs(t, "a"), openAs(t, "a"), newPool(t)
	s := spec(pool, "one")
	s.Volume, s.Note = "v", "a note"
	must(t, maker.CreateImage(t.Context(), s))
	trashByHand(t, maker, s.ImageRef)
	if left, err := emptier.LeftInTrash(t.Context(), pool, "on"); err != nil || len(left) != 1 || left[0].ID != trashed(t, maker, pool).ID {
		t.Errorf("nobody is told: %+v, %v", left, err)
	}
	if left, err := emptier.LeftInTrash(t.Context(), pool, "other"); err != nil || len(left) > 0 {
		t.Errorf("of other names: %+v, %v", left, err)
	}
	stays(t, emptier, s.ImageRef)

	// The driver moves it there, somebody takes it out, and later moves it there again.
	must(t, maker.DeleteImage(t.Context(), s.ImageRef))
	restore(t, maker, s.ImageRef)
	inPool(t, maker, pool, func(io *rados.IOContext) error {
		_, err := withImage(io, s.Name, readWrite, func(image *librbd.Image) (struct{}, error) {
			return struct{}{}, image.SetMetadata("escache.io/trashed", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano))
		})
		return err
	})
	trashByHand(t, maker, s.ImageRef)
	stays(t, emptier, s.ImageRef)

	// It is used again, and then moved there at once.
	for _, c := range []*Cluster{emptier, maker} {
		must(t, maker.DeleteImage(t.Context(), s.ImageRef))
		restore(t, maker, s.ImageRef)
		must(t, maker.NoteImage(t.Context(), s.ImageRef, "v", "attached"))
		trashByHand(t, maker, s.ImageRef)
		stays(t, c, s.ImageRef)
	}

	// The process of the driver dies in the move.
	const moving = 1
	must(t, maker.DeleteImage(t.Context(), s.ImageRef))
	id := trashed(t, maker, pool).ID
	inPool(t, maker, pool, func(io *rados.IOContext) error { return setTrashState(io, id, moving, trashNormal) })
	if left, err := emptier.LeftInTrash(t.Context(), pool, ""); err != nil || len(left) > 0 {
		t.Errorf("of what the driver has deleted: %+v, %v", left, err)
	}
	if left, err := emptier.EmptyTrash(t.Context(), pool); left != 0 || err != nil {
		t.Fatalf("%d are left of what the driver has deleted, %v", left, err)
	}
	waitForEmptyPool(t, maker, pool)
}

func TestWhoMovedAnImageToTheTrashLast(t *testing.T) {
	noted := time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)
	for what, tc := range map[string]struct {
		later time.Duration
		want  bool
	}{
		"at once":                                   {time.Millisecond, true},
		"Ceph was slow":                             {2 * time.Minute, true},
		"the clock was set back":                    {-time.Minute, true},
		"a move of the day before was finished":     {-24 * time.Hour, true},
		"it was taken out, and moved there by hand": {time.Hour, false},
	} {
		if got := movedLast(noted, noted.Add(tc.later)); got != tc.want {
			t.Errorf("%s: the driver has: %v", what, got)
		}
	}
}

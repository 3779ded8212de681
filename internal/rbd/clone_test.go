package rbd

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rados"
)

// TestAnImageHasNoMoreSnapshotsThanAKernelReads: a node that cannot read the new header goes on
// writing by the old one, into the snapshot.
func TestAnImageHasNoMoreSnapshotsThanAKernelReads(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	id, err := c.ImageID(ctx, s.ImageRef)
	must(t, err)
	inPool(t, c, pool, func(io *rados.IOContext) error {
		// The header alone, whose snapshots need no monitor.
		for n := range 500 {
			if err := addHeaderSnapshot(io, headerOf(id), fmt.Sprint("s", n), uint64(1000+n)); err != nil {
				return err
			}
		}
		return hideHeaderSnapshot(io, headerOf(id), 1000)
	})
	ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "one-more"}
	refused := func(when string) {
		if _, err := c.CreateSnapshot(ctx, ref); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "500 snapshots") {
			t.Errorf("%s: got %v", when, err)
		}
	}
	again := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s1"}
	if _, err := c.CreateSnapshot(ctx, again); !errors.Is(err, ErrExists) {
		t.Errorf("one that is there already: %v", err)
	}
	refused("nobody has it")
	stop := useImage(t, s.ImageRef, true)
	refused("a node has it")
	stop()
}

// TestACloneHasNoMoreParentsThanAKernelFollows: a node could not map it.
func TestACloneHasNoMoreParentsThanAKernelFollows(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	name := func(n int) ImageRef { return ImageRef{pool, fmt.Sprint("c", n)} }
	must(t, c.CreateImage(ctx, ImageSpec{ImageRef: name(0), SizeBytes: 1 << 20}))
	for n := range 17 {
		from := SnapshotRef{ImageRef: name(n), Snapshot: "s"}
		_, err := c.CreateSnapshot(ctx, from)
		must(t, err)
		err = c.CloneImage(ctx, from, ImageSpec{ImageRef: name(n + 1)})
		if n == 16 {
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "16 parents") || !strings.Contains(err.Error(), "rbd flatten") {
				t.Errorf("the clone with 17 parents: %v", err)
			}
			break
		}
		must(t, err)
		must(t, c.RemoveSnapshot(ctx, from))
		must(t, c.DeleteImage(ctx, name(n))) // parents may be in the trash
	}
}

// TestASnapshotWithClonesMakesRoomForOneOfItsName: a clone of a volume that was interrupted is made
// again, of a snapshot that has the name of the first one.
func TestASnapshotWithClonesMakesRoomForOneOfItsName(t *testing.T) {
	for name, locked := range map[string]bool{"nobody has the image": false, "a node has the image": true} {
		t.Run(name, func(t *testing.T) {
			c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
			s := spec(pool, "a")
			must(t, c.CreateImage(ctx, s))
			stop := func() {}
			if locked {
				stop = useImage(t, s.ImageRef, true)
			}
			ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "clone_pvc-1"}
			clone := ImageSpec{ImageRef: ImageRef{pool, "clone"}, SizeBytes: s.SizeBytes}
			for range 2 {
				_, err := c.CreateSnapshot(ctx, ref)
				must(t, err)
				must(t, c.CloneImage(ctx, ref, clone))
				must(t, c.RemoveSnapshot(ctx, ref))
				must(t, c.DeleteImage(ctx, clone.ImageRef)) // it is in the trash, and still a clone
			}
			if all, err := c.ListSnapshots(ctx, s.ImageRef); err != nil || len(all) != 0 {
				t.Errorf("snapshots %+v, %v", all, err)
			}
			stop()
			must(t, c.DeleteImage(ctx, s.ImageRef))
			if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
				t.Errorf("%d left, %v", left, err)
			}
		})
	}
}

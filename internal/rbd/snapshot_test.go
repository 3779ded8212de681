package rbd

import (
	"errors"
	"testing"
)

func TestSnapshotsAndClones(t *testing.T) {
	c, pool, other, ctx := open(t, ceph, Options{}), newPool(t), newPool(t), t.Context()
	parent := spec(pool, "parent")
	must(t, c.CreateImage(ctx, parent))
	ref := SnapshotRef{ImageRef: parent.ImageRef, Snapshot: "s"}
	snap, err := c.CreateSnapshot(ctx, ref)
	must(t, err)
	if snap.Name != "s" || snap.SizeBytes != parent.SizeBytes || snap.ID == 0 || snap.Created.IsZero() {
		t.Fatalf("got %+v", snap)
	}
	if again, err := c.CreateSnapshot(ctx, ref); !errors.Is(err, ErrExists) || again != snap {
		t.Fatalf("a second create: %+v, %v", again, err)
	}
	if all, err := c.ListSnapshots(ctx, parent.ImageRef); err != nil || len(all) != 1 || all[0] != snap {
		t.Fatalf("got %+v, %v", all, err)
	}

	clone := ImageSpec{ImageRef: ImageRef{other, "clone"}, SizeBytes: 128 << 20}
	must(t, c.CloneImage(ctx, ref, clone))
	info, err := c.ImageInfo(ctx, clone.ImageRef)
	must(t, err)
	if info.SizeBytes != clone.SizeBytes || info.Parent == nil || *info.Parent != ref {
		t.Fatalf("got %+v, parent %+v", info, info.Parent)
	}
	var exists *ExistsError
	if err := c.CloneImage(ctx, ref, clone); !errors.As(err, &exists) || exists.Image.ID != info.ID {
		t.Fatalf("a second clone: %v", err)
	}
	if clones, err := c.Clones(ctx, parent.ImageRef); err != nil || len(clones) != 1 || clones[0] != clone.ImageRef {
		t.Fatalf("got %+v, %v", clones, err)
	}

	// The snapshot, and then the image, may go before the clone does: what the clone needs stays.
	must(t, c.RemoveSnapshot(ctx, ref))
	if err := c.RemoveSnapshot(ctx, ref); !errors.Is(err, ErrNotFound) {
		t.Fatalf("a second remove: %v", err)
	}
	if all, err := c.ListSnapshots(ctx, parent.ImageRef); err != nil || len(all) != 0 {
		t.Fatalf("got %+v, %v", all, err)
	}
	must(t, c.DeleteImage(ctx, parent.ImageRef))
	if left, err := c.EmptyTrash(ctx, pool); left != 1 || !errors.Is(err, ErrHasSnapshots) {
		t.Fatalf("%d left, %v", left, err)
	}
	must(t, c.DeleteImage(ctx, clone.ImageRef))
	if left, err := c.EmptyTrash(ctx, other); left != 0 || err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Fatalf("after the clone: %d left, %v", left, err)
	}
}

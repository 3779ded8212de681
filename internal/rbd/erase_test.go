package rbd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// writeAt writes 4 KiB at each of these places of an image.
func writeAt(t *testing.T, c *Cluster, ref ImageRef, at ...int64) {
	t.Helper()
	inPool(t, c, ref.Pool, func(io *rados.IOContext) error {
		_, err := withImage(io, ref.Name, readWrite, func(image *librbd.Image) (struct{}, error) {
			for _, offset := range at {
				if _, err := image.WriteAt([]byte(strings.Repeat("x", 4096)), offset); err != nil {
					return struct{}{}, err
				}
			}
			return struct{}{}, nil
		})
		return err
	})
}

// dataObjects returns how many objects with data a pool has.
func dataObjects(t *testing.T, c *Cluster, pool string) int {
	t.Helper()
	n := 0
	inPool(t, c, pool, func(io *rados.IOContext) error {
		return io.ListObjects(func(name string) {
			if strings.HasPrefix(name, "rbd_data.") {
				n++
			}
		})
	})
	return n
}

// Ceph's own purge of such an image takes 110 minutes: it deletes 26 million objects, and three exist.
func TestALargeImageIsErasedByWhatItsPoolHas(t *testing.T) {
	const size = 100 << 40
	for name, change := range map[string]func(*ImageSpec, string){
		"plain":   func(*ImageSpec, string) {},
		"striped": func(s *ImageSpec, _ string) { s.StripeUnitBytes, s.StripeCount = 64<<10, 7 },
		"with a data pool": func(s *ImageSpec, dataPool string) {
			s.DataPool = dataPool
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, pool, dataPool := open(t, ceph, Options{}), newPool(t), newPool(t)
			ctx := within(t, 2*time.Minute)
			other := spec(pool, "other")
			large := ImageSpec{ImageRef: ImageRef{pool, "large"}, SizeBytes: size}
			change(&other, dataPool)
			change(&large, dataPool)
			must(t, c.CreateImage(ctx, other))
			must(t, c.CreateImage(ctx, large))
			writeAt(t, c, other.ImageRef, 0, 32<<20)
			writeAt(t, c, large.ImageRef, 0, 50<<40, size-4096)
			must(t, c.DeleteImage(ctx, large.ImageRef))
			if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
				t.Fatalf("%d left, %v", left, err)
			}
			if got := dataObjects(t, c, pool) + dataObjects(t, c, dataPool); got != 2 {
				t.Errorf("%d objects with data, want the two of the other image", got)
			}
			must(t, c.DeleteImage(ctx, other.ImageRef))
			if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
				t.Fatalf("%d left, %v", left, err)
			}
			waitForEmptyPool(t, c, pool)
			waitForEmptyPool(t, c, dataPool)
		})
	}
}

// eraseTrashed erases an image in the trash, object by object or by a list.
func eraseTrashed(ctx context.Context, c *Cluster, pool string, left func(int64)) error {
	all, err := c.TrashedImages(ctx, pool)
	if err != nil {
		return err
	}
	_, err = call(context.WithoutCancel(ctx), c, "test", "", func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, pool, func(io *rados.IOContext) (struct{}, error) {
			plan, err := erasable(io, all[0].ID)
			if err != nil || plan == nil {
				return struct{}{}, fmt.Errorf("no plan: %w", err)
			}
			v := victim{
				image: all[0], io: io, data: io, prefix: plan.prefix, stripe: plan.stripe, width: plan.width, objects: plan.objects, left: left,
			}
			return struct{}{}, v.eraseNumbered(ctx)
		})
	})
	return err
}

// What was erased before an interruption is not asked for again, and all the rest is.
func TestAnInterruptedEraseGoesOn(t *testing.T) {
	// The rest is erased in one call, which takes longer on a busy machine than a call of the driver may.
	c, pool, ctx := open(t, ceph, Options{CallTimeout: 5 * time.Minute}), newPool(t), t.Context()
	const objects = 3*eraseStep + 5
	s := ImageSpec{
		ImageRef: ImageRef{pool, "a"}, SizeBytes: objects * (64 << 10), ObjectSizeBytes: 64 << 10, StripeUnitBytes: 4 << 10, StripeCount: 4,
	}
	must(t, c.CreateImage(ctx, s))
	var at []int64
	for n := range int64(64) {
		at = append(at, n*s.SizeBytes/64/4096*4096)
	}
	writeAt(t, c, s.ImageRef, append(at, s.SizeBytes-4096)...)
	must(t, c.DeleteImage(ctx, s.ImageRef))
	before := dataObjects(t, c, pool)
	interrupted, interrupt := context.WithCancel(ctx)
	var sizes []int64
	err := eraseTrashed(interrupted, c, pool, func(left int64) { sizes = append(sizes, left); interrupt() })
	if !errors.Is(err, context.Canceled) || len(sizes) != 1 {
		t.Fatalf("interrupted: %v, sizes %v", err, sizes)
	}
	after := dataObjects(t, c, pool)
	if after == 0 || after >= before {
		t.Fatalf("%d objects of %d", after, before)
	}
	size, err := (ownTrash{Cluster: c}).Measure(ctx, trashed(t, c, pool))
	must(t, err)
	if size.Bytes != sizes[0] || size.Objects < objects-eraseStep || size.Objects >= objects-eraseStep+s.StripeCount {
		t.Errorf("%+v is left, and %d bytes were told", size, sizes[0])
	}
	must(t, eraseTrashed(ctx, c, pool, func(int64) {}))
	if left := dataObjects(t, c, pool); left != 0 {
		t.Errorf("%d objects are left", left)
	}
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
	waitForEmptyPool(t, c, pool)
}

func trashed(t *testing.T, c *Cluster, pool string) TrashedImage {
	t.Helper()
	all, err := c.TrashedImages(t.Context(), pool)
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("in the trash: %+v", all)
	}
	return all[0]
}

// An image that others still need keeps every object: one that clones read through a hidden
// snapshot, and one that a client has opened since.
func TestAnImageInUseIsNotErased(t *testing.T) {
	const size = 20 << 30
	t.Run("it has a clone", func(t *testing.T) {
		c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
		s := ImageSpec{ImageRef: ImageRef{pool, "parent"}, SizeBytes: size}
		must(t, c.CreateImage(ctx, s))
		writeAt(t, c, s.ImageRef, 0, size-4096)
		snapshot := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
		_, err := c.CreateSnapshot(ctx, snapshot)
		must(t, err)
		must(t, c.CloneImage(ctx, snapshot, ImageSpec{ImageRef: ImageRef{pool, "clone"}}))
		must(t, c.RemoveSnapshot(ctx, snapshot))
		must(t, c.DeleteImage(ctx, s.ImageRef))
		if _, err := c.EmptyTrash(ctx, pool); !errors.Is(err, ErrHasSnapshots) {
			t.Errorf("got %v", err)
		}
		if got := dataObjects(t, c, pool); got != 2 {
			t.Errorf("%d of the two objects are left", got)
		}
		must(t, c.DeleteImage(ctx, ImageRef{pool, "clone"}))
		if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
			t.Fatalf("%d left, %v", left, err)
		}
		waitForEmptyPool(t, c, pool)
	})
	t.Run("a client has it open", func(t *testing.T) {
		c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
		s := ImageSpec{ImageRef: ImageRef{pool, "a"}, SizeBytes: size}
		must(t, c.CreateImage(ctx, s))
		writeAt(t, c, s.ImageRef, 0, size-4096)
		must(t, c.DeleteImage(ctx, s.ImageRef))
		id := trashed(t, c, pool).ID
		inPool(t, open(t, ceph, Options{}), pool, func(io *rados.IOContext) error {
			image, err := librbd.OpenImageById(io, id, librbd.NoSnapshot)
			if err != nil {
				return err
			}
			if _, err := c.EmptyTrash(ctx, pool); !errors.Is(err, ErrBusy) {
				t.Errorf("got %v", err)
			}
			return image.Close()
		})
		if got := dataObjects(t, c, pool); got != 2 {
			t.Errorf("%d of the two objects are left", got)
		}
		if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
			t.Fatalf("%d left, %v", left, err)
		}
	})
}

// What is half gone must not come back as if it were whole.
func TestAnImageThatIsBeingErasedStaysInTheTrash(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := ImageSpec{ImageRef: ImageRef{pool, "a"}, SizeBytes: 20 << 30}
	must(t, c.CreateImage(ctx, s))
	must(t, c.DeleteImage(ctx, s.ImageRef))
	e := trashed(t, c, pool)
	interrupted, interrupt := context.WithCancel(ctx)
	interrupt()
	_, err := call(ctx, c, "test", "", func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, pool, func(io *rados.IOContext) (struct{}, error) {
			if err := erase(interrupted, conn, io, e, func(int64) {}); !errors.Is(err, context.Canceled) {
				t.Errorf("erase: %v", err)
			}
			return struct{}{}, librbd.TrashRestore(io, e.ID, "a")
		})
	})
	if !errors.Is(err, ErrBusy) {
		t.Errorf("taken out of the trash: %v", err)
	}
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
}

// Ceph's own purge is fast enough for these, or has to judge them.
func TestSomeImagesAreLeftToCeph(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	for name, s := range map[string]ImageSpec{
		"small":          {SizeBytes: 10 << 30},
		"has object-map": {SizeBytes: 1 << 40, Features: allFeatures},
	} {
		s.ImageRef = ImageRef{pool, strings.ReplaceAll(name, " ", "-")}
		must(t, c.CreateImage(ctx, s))
		id, err := c.ImageID(ctx, s.ImageRef)
		must(t, err)
		inPool(t, c, pool, func(io *rados.IOContext) error {
			plan, err := erasable(io, id)
			if plan != nil {
				t.Errorf("%s: %+v", name, plan)
			}
			return err
		})
		must(t, c.DeleteImage(ctx, s.ImageRef))
	}
	if left, err := c.EmptyTrash(within(t, time.Minute), pool); left != 0 || err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
}

// `rbd trash mv --expires-at` promises that the image can be restored until then.
func TestALargeImageUnderADelayIsNotErased(t *testing.T) {
	const size = 20 << 30
	c, pool, ctx := open(t, ceph, Options{OwnsTrash: func(string) bool { return true }}), newPool(t), t.Context()
	s := ImageSpec{ImageRef: ImageRef{pool, "a"}, SizeBytes: size}
	must(t, c.CreateImage(ctx, s))
	writeAt(t, c, s.ImageRef, 0, size-4096)
	id, err := c.ImageID(ctx, s.ImageRef)
	must(t, err)
	inPool(t, c, pool, func(io *rados.IOContext) error {
		_, err := noteMove(io, id)
		return errors.Join(err, librbd.GetImage(io, "a").Trash(time.Hour))
	})
	if left, err := c.EmptyTrash(ctx, pool); left != 1 || !errors.Is(err, ErrPermission) {
		t.Errorf("%d left, %v", left, err)
	}
	if got := dataObjects(t, c, pool); got != 2 {
		t.Errorf("%d of the two objects are left", got)
	}
	inPool(t, c, pool, func(io *rados.IOContext) error { return librbd.TrashRestore(io, id, "a") })
	if info, err := c.Inspect(ctx, s.ImageRef); err != nil || info.SizeBytes != size {
		t.Errorf("restored: %+v, %v", info, err)
	}
}

// A process may die while it moves an image to the trash.
func TestALargeImageThatIsHalfInTheTrashIsErased(t *testing.T) {
	const moving = 1
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := ImageSpec{ImageRef: ImageRef{pool, "a"}, SizeBytes: 20 << 30}
	must(t, c.CreateImage(ctx, s))
	writeAt(t, c, s.ImageRef, 0)
	must(t, c.DeleteImage(ctx, s.ImageRef))
	id := trashed(t, c, pool).ID
	inPool(t, c, pool, func(io *rados.IOContext) error { return setTrashState(io, id, moving, trashNormal) })
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
	waitForEmptyPool(t, c, pool)
}

package rbd

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

func TestImageLife(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	info, err := c.ImageInfo(ctx, s.ImageRef)
	must(t, err)
	if info.SizeBytes != s.SizeBytes || info.Features != DefaultFeatures || info.ObjectSizeBytes != 4<<20 || info.DataPool != "" || info.Parent != nil {
		t.Fatalf("got %+v", info)
	}
	if id, err := c.ImageID(ctx, s.ImageRef); err != nil || id == "" || id != info.ID {
		t.Fatalf("ID %q, %v, the open image says %q", id, err, info.ID)
	}

	var exists *ExistsError
	if err := c.CreateImage(ctx, s); !errors.As(err, &exists) || !errors.Is(err, ErrExists) || exists.Image != info {
		t.Fatalf("a second create: %v, %+v", err, exists)
	}
	if size, err := c.GrowImage(ctx, s.ImageRef, 128<<20); err != nil || size != 128<<20 {
		t.Fatalf("grown to %d, %v", size, err)
	}
	if size, err := c.GrowImage(ctx, s.ImageRef, 64<<20); err != nil || size != 128<<20 {
		t.Fatalf("an image must not shrink: %d, %v", size, err)
	}
	if names, err := c.ListImages(ctx, pool); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Fatalf("got %v, %v", names, err)
	}

	must(t, c.DeleteImage(ctx, s.ImageRef))
	for name, err := range map[string]error{
		"delete": c.DeleteImage(ctx, s.ImageRef),
		"info":   second(c.ImageInfo(ctx, s.ImageRef)),
		"id":     second(c.ImageID(ctx, s.ImageRef)),
		"grow":   second(c.GrowImage(ctx, s.ImageRef, 64<<20)),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s of a deleted image: %v", name, err)
		}
	}
	must(t, c.CreateImage(ctx, s)) // the name is free while the old image is in the trash
	if trash, err := c.TrashedImages(ctx, pool); err != nil || len(trash) != 1 || trash[0].ID != info.ID || trash[0].Name != "a" {
		t.Fatalf("trash %+v, %v", trash, err)
	}
	if left, err := c.EmptyTrash(ctx, pool); err != nil || left != 0 {
		t.Fatalf("%d left, %v", left, err)
	}
	if trash, err := c.TrashedImages(ctx, pool); err != nil || len(trash) != 0 {
		t.Fatalf("trash %+v, %v", trash, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestImageLayoutIsWhatWasAsked(t *testing.T) {
	c, pool, data, ctx := open(t, ceph, Options{}), newPool(t), newPool(t), t.Context()
	features, err := ParseFeatures([]string{"layering", "exclusive-lock"})
	must(t, err)
	s := ImageSpec{
		ImageRef: ImageRef{Pool: pool, Name: "a"}, SizeBytes: 1 << 30, Features: features, DataPool: data,
		ObjectSizeBytes: 8 << 20, StripeUnitBytes: 64 << 10, StripeCount: 4,
	}
	must(t, c.CreateImage(ctx, s))
	info, err := c.ImageInfo(ctx, s.ImageRef)
	must(t, err)
	if info.DataPool != data || info.ObjectSizeBytes != 8<<20 || info.StripeUnitBytes != 64<<10 || info.StripeCount != 4 {
		t.Errorf("got %+v", info)
	}
	if got := info.Features.String(); got != "layering,striping,exclusive-lock,data-pool" {
		t.Errorf("features %s", got)
	}
	s.Name, s.DataPool = "b", "none"
	if err := c.CreateImage(ctx, s); !errors.Is(err, ErrPoolNotFound) {
		t.Errorf("an unknown data pool: %v", err)
	}
}

func TestParallelCreatesOfOneNameMakeOneImage(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	made := 0
	ids := map[string]bool{}
	for _, err := range inParallel(100, func(int) error { return c.CreateImage(ctx, spec(pool, "one")) }) {
		var exists *ExistsError
		switch {
		case err == nil:
			made++
		case errors.As(err, &exists):
			ids[exists.Image.ID] = true
		default:
			t.Error(err)
		}
	}
	id, err := c.ImageID(ctx, ImageRef{pool, "one"})
	must(t, err)
	if made != 1 || len(ids) != 1 || !ids[id] {
		t.Errorf("%d creates say they made it; IDs %v, the image has %s", made, ids, id)
	}
	if names, err := c.ListImages(ctx, pool); err != nil || len(names) != 1 {
		t.Errorf("images %v, %v", names, err)
	}
}

func TestUnknownPool(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	for name, err := range map[string]error{
		"create":   c.CreateImage(ctx, spec("none", "a")),
		"delete":   c.DeleteImage(ctx, ImageRef{"none", "a"}),
		"info":     second(c.ImageInfo(ctx, ImageRef{"none", "a"})),
		"list":     second(c.ListImages(ctx, "none")),
		"check":    c.CheckPool(ctx, "none"),
		"capacity": second(c.PoolCapacity(ctx, "none")),
		"trash":    second(c.EmptyTrash(ctx, "none")),
	} {
		if !errors.Is(err, ErrPoolNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnImageInUseIsNotDeleted(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	if w, err := c.Watchers(ctx, s.ImageRef); err != nil || len(w) != 0 {
		t.Fatalf("watchers %+v, %v", w, err)
	}
	if o, err := c.LockOwner(ctx, s.ImageRef); err != nil || o != nil {
		t.Fatalf("lock owner %+v, %v", o, err)
	}
	for _, locked := range []bool{false, true} {
		t.Run(fmt.Sprintf("locked=%v", locked), func(t *testing.T) {
			user := useImage(t, s.ImageRef, locked)
			w, err := c.Watchers(ctx, s.ImageRef)
			if err != nil || len(w) != 1 || w[0].Address == "" {
				t.Fatalf("watchers %+v, %v", w, err)
			}
			o, err := c.LockOwner(ctx, s.ImageRef)
			if err != nil || (o != nil) != locked || (locked && o.Address != w[0].Address) {
				t.Errorf("lock owner %+v, %v; watchers %+v", o, err, w)
			}
			if err := c.DeleteImage(ctx, s.ImageRef); !errors.Is(err, ErrBusy) {
				t.Errorf("delete: %v", err)
			}
			user()
		})
	}
	must(t, c.DeleteImage(ctx, s.ImageRef))
}

// useImage opens an image as another client does, until the returned function is called.
func useImage(t *testing.T, ref ImageRef, lock bool) (stop func()) {
	t.Helper()
	_, stop = openedImage(t, ref, lock)
	return stop
}

func openedImage(t *testing.T, ref ImageRef, lock bool) (image *librbd.Image, stop func()) {
	t.Helper()
	conn, err := rados.NewConnWithUser("admin")
	must(t, err)
	must(t, conn.ReadConfigFile(ceph.Conf()))
	must(t, conn.Connect())
	io, err := conn.OpenIOContext(ref.Pool)
	must(t, err)
	image, err = librbd.OpenImage(io, ref.Name, librbd.NoSnapshot)
	must(t, err)
	if lock {
		must(t, image.LockAcquire(librbd.LockModeExclusive))
	}
	return image, func() {
		must(t, image.Close())
		io.Destroy()
		conn.Shutdown()
	}
}

func TestImageSpecsThatCephOrTheKernelDoNotTake(t *testing.T) {
	for name, change := range map[string]func(*ImageSpec){
		"no name":                  func(s *ImageSpec) { s.Name = "" },
		"no size":                  func(s *ImageSpec) { s.SizeBytes = 0 },
		"half a sector":            func(s *ImageSpec) { s.SizeBytes = 1<<20 + 256 },
		"odd object size":          func(s *ImageSpec) { s.ObjectSizeBytes = 3 << 20 },
		"small object size":        func(s *ImageSpec) { s.ObjectSizeBytes = 2 << 10 },
		"large object size":        func(s *ImageSpec) { s.ObjectSizeBytes = 64 << 20 },
		"stripe unit alone":        func(s *ImageSpec) { s.StripeUnitBytes = 64 << 10 },
		"stripe count alone":       func(s *ImageSpec) { s.StripeCount = 4 },
		"stripe unit above object": func(s *ImageSpec) { s.StripeUnitBytes, s.StripeCount = 8<<20, 2 },
		"negative stripe count":    func(s *ImageSpec) { s.StripeUnitBytes, s.StripeCount = 64<<10, -1 },
		"journaling":               func(s *ImageSpec) { s.Features = DefaultFeatures | Features(librbd.FeatureJournaling) },
	} {
		t.Run(name, func(t *testing.T) {
			s := spec("rbd", "a")
			if err := s.Validate(); err != nil {
				t.Fatalf("before the change: %v", err)
			}
			change(&s)
			if err := s.Validate(); !errors.Is(err, ErrInvalid) {
				t.Errorf("got %v", err)
			}
		})
	}
}

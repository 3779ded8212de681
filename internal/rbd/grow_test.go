package rbd

import (
	"errors"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rados"
)

func TestAnImageGrowsWhileSomebodyHasItsLock(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	stop := useImage(t, s.ImageRef, true)
	defer stop()
	for _, size := range []int64{128 << 20, 96 << 20, 1 << 40} {
		want := max(size, 128<<20)
		if got, err := c.GrowImage(ctx, s.ImageRef, size); err != nil || got != want {
			t.Fatalf("grown to %d, %v, want %d", got, err, want)
		}
		if info, err := c.ImageInfo(ctx, s.ImageRef); err != nil || info.SizeBytes != want {
			t.Fatalf("it has %d bytes, %v, want %d", info.SizeBytes, err, want)
		}
	}
	if owner, err := c.LockOwner(ctx, s.ImageRef); err != nil || owner == nil {
		t.Errorf("lock owner %+v, %v", owner, err)
	}
}

// TestAnImageThatHasGrownIsToldToItsUser is about a call that ends after it has written the size and before it has told the user.
// The repeated call does so. Without a notification librbd does not read the header again, as krbd does not.
func TestAnImageThatHasGrownIsToldToItsUser(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	image, stop := openedImage(t, s.ImageRef, true)
	defer stop()
	id, err := c.ImageID(ctx, s.ImageRef)
	must(t, err)
	inPool(t, c, pool, func(io *rados.IOContext) error {
		_, version, err := headerSize(io, headerOf(id))
		must(t, err)
		return setHeaderSize(io, headerOf(id), version, 128<<20)
	})
	if size, err := image.GetSize(); err != nil || int64(size) != s.SizeBytes {
		t.Fatalf("the user has %d bytes, %v, and nobody has told it", size, err)
	}
	if size, err := c.GrowImage(ctx, s.ImageRef, 128<<20); err != nil || size != 128<<20 {
		t.Errorf("grown to %d, %v", size, err)
	}
	if size, err := image.GetSize(); err != nil || size != 128<<20 {
		t.Errorf("the user has %d bytes, %v", size, err)
	}
}

func TestAnImageWithObjectMapGrowsOnlyUnlocked(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	s.Features = DefaultFeatures | ObjectMap
	must(t, c.CreateImage(ctx, s))
	stop := useImage(t, s.ImageRef, true)
	if _, err := c.GrowImage(ctx, s.ImageRef, 128<<20); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "detach the volume") {
		t.Errorf("got %v", err)
	}
	if info, err := c.ImageInfo(ctx, s.ImageRef); err != nil || info.SizeBytes != s.SizeBytes {
		t.Errorf("it has %d bytes, %v", info.SizeBytes, err)
	}
	stop()
	if size, err := c.GrowImage(ctx, s.ImageRef, 128<<20); err != nil || size != 128<<20 {
		t.Errorf("grown to %d, %v", size, err)
	}
}

// TestAHeaderThatHasChangedIsNotWritten is about two who grow an image at once: the smaller size
// must not win.
func TestAHeaderThatHasChangedIsNotWritten(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	id, err := c.ImageID(ctx, s.ImageRef)
	must(t, err)
	inPool(t, c, pool, func(io *rados.IOContext) error {
		header := "rbd_header." + id
		size, before, err := headerSize(io, header)
		if err != nil || size != s.SizeBytes {
			t.Errorf("size %d, %v", size, err)
		}
		must(t, setHeaderSize(io, header, before, 256<<20))
		if err := setHeaderSize(io, header, before, 128<<20); err == nil {
			t.Error("written over what was changed since")
		}
		if size, err := growHeader(io, header, 128<<20); err != nil || size != 256<<20 {
			t.Errorf("grown to %d, %v", size, err)
		}
		if _, _, err := headerSize(io, "rbd_header.absent"); !errors.Is(translate(err), ErrNotFound) {
			t.Errorf("a header that is not there: %v", err)
		}
		return nil
	})
}

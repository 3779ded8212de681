package rbd

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// TestAnImagesSnapshotsAndSizeAreChangedByOneCallAtATime: a call that nobody waits for any more goes on. It would remove the
// snapshot that its successor has taken, take again the one that its successor has removed, or shrink the image.
func TestAnImagesSnapshotsAndSizeAreChangedByOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, release := &Cluster{id: "c", options: Options{}.withDefaults(), gate: newGate("c", 1, 4, time.Second)}, make(chan struct{})
		defer close(release)
		ref, other := ImageRef{"rbd", "one"}, ImageRef{"rbd", "two"}
		if err := hang(t.Context(), c.gate, "snapshot_remove", ref.String(), release); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		ctx := t.Context()
		for name, change := range map[string]func(ImageRef) error{
			"create": func(image ImageRef) error { return second(c.CreateSnapshot(ctx, SnapshotRef{image, "s"})) },
			"remove": func(image ImageRef) error { return c.RemoveSnapshot(ctx, SnapshotRef{image, "s"}) },
			"wait":   func(image ImageRef) error { return c.Settled(ctx, image) },
			"grow":   func(image ImageRef) error { return second(c.GrowImage(ctx, image, 1<<30)) },
		} {
			if err := change(ref); err == nil || !strings.Contains(err.Error(), "an earlier call on it has not ended") {
				t.Errorf("%s: %v", name, err)
			}
			if err := change(other); err == nil || !strings.Contains(err.Error(), "1 calls are ahead of it") {
				t.Errorf("%s of another image: %v", name, err)
			}
		}
	})
}

// TestASizeThatWasChangedMeanwhileIsNotMadeSmaller: the image has grown since the call saw that it is too small.
func TestASizeThatWasChangedMeanwhileIsNotMadeSmaller(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	must(t, second(c.GrowImage(ctx, s.ImageRef, 256<<20)))
	inPool(t, c, pool, func(io *rados.IOContext) error {
		if got, err := growFree(io, s.Name, 128<<20); err != nil || got != 256<<20 {
			t.Errorf("it has %d bytes, %v", got, err)
		}
		return nil
	})
	if info, err := c.ImageInfo(ctx, s.ImageRef); err != nil || info.SizeBytes != 256<<20 {
		t.Errorf("it has %d bytes, %v", info.SizeBytes, err)
	}
}

package rbd

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// TestSmallImagesDoNotWaitForALargeOne: what is deleted while a large image is being purged is gone
// before that image is.
func TestSmallImagesDoNotWaitForALargeOne(t *testing.T) {
	pool := newPool(t)
	clusters := NewClusters(Options{Dir: configDir(t, ceph.Conf(), ceph.AdminKeyring())})
	t.Cleanup(clusters.Close)
	c, err := clusters.Get(testCluster)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		clusters.Run(ctx, slog.New(slog.DiscardHandler))
	}()
	defer func() { stop(); <-ended }()
	large := spec(pool, "large")
	large.SizeBytes = 4 << 40 // a million objects to delete
	must(t, c.CreateImage(t.Context(), large))
	inPool(t, c, pool, func(io *rados.IOContext) error { // so that Ceph has to delete them
		_, err := withImage(io, large.Name, readWrite, func(image *librbd.Image) (struct{}, error) {
			return struct{}{}, image.UpdateFeatures(uint64(ExclusiveLock), false)
		})
		return err
	})
	must(t, c.DeleteImage(t.Context(), large.ImageRef))
	for deadline := time.Now().Add(2 * time.Minute); c.trash.gate.oldest() == "none is running now"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the large image is not being purged")
		}
	}
	for n := range 8 {
		s := spec(pool, fmt.Sprint("small", n))
		must(t, c.CreateImage(t.Context(), s))
		must(t, c.DeleteImage(t.Context(), s.ImageRef))
	}
	var names []string
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		all, err := c.TrashedImages(t.Context(), pool)
		must(t, err)
		names = names[:0]
		for _, e := range all {
			names = append(names, e.Name)
		}
		if slices.Equal(names, []string{"large"}) {
			return
		}
	}
	t.Errorf("in the trash: %v, and only the large image should be", names)
}

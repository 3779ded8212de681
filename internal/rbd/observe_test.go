package rbd

import (
	"slices"
	"sync"
	"testing"
	"time"
)

func TestEveryCallIsObserved(t *testing.T) {
	pool := newPool(t)
	var mu sync.Mutex
	var seen []string
	c, ctx := open(t, ceph, Options{Observe: func(op, result string, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if took <= 0 {
			t.Errorf("%s took %s", op, took)
		}
		seen = append(seen, op+" "+result)
	}}), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	_ = c.CreateImage(ctx, s)
	must(t, c.DeleteImage(ctx, s.ImageRef))
	_ = c.DeleteImage(ctx, s.ImageRef)
	_, err := c.EmptyTrash(ctx, pool)
	must(t, err)
	_ = c.CheckPool(ctx, "none")
	want := []string{
		"image_create ok", "image_create exists", "image_delete ok", "image_delete not_found", "trash_list ok", "trash_measure ok", "image_purge ok",
		"pool_check pool_not_found",
	}
	if !slices.Equal(seen, want) {
		t.Errorf("got  %v\nwant %v", seen, want)
	}
}

package rbd

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestPoolCheckAndCreation(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	name := fmt.Sprintf("new%d", time.Now().UnixNano())
	t.Cleanup(func() { removePool(t, name) })
	if err := c.CheckPool(ctx, name); !errors.Is(err, ErrPoolNotFound) {
		t.Fatalf("before: %v", err)
	}
	must(t, c.EnsurePool(ctx, name))
	must(t, c.CheckPool(ctx, name))
	must(t, c.EnsurePool(ctx, name))
	must(t, c.CreateImage(ctx, spec(name, "a")))

	for _, err := range inParallel(8, func(int) error { return c.EnsurePool(ctx, name+"-parallel") }) {
		must(t, err)
	}
	t.Cleanup(func() { removePool(t, name+"-parallel") })
	must(t, c.CheckPool(ctx, name+"-parallel"))
}

func TestAPoolOfSomethingElseIsLeftAlone(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	name := fmt.Sprintf("raw%d", time.Now().UnixNano())
	ceph.Ceph(t, "osd", "pool", "create", name, "8")
	t.Cleanup(func() { removePool(t, name) })
	if err := c.CheckPool(ctx, name); !errors.Is(err, ErrPoolNotReady) || !strings.Contains(err.Error(), "rbd pool init "+name) {
		t.Errorf("a raw pool: %v", err)
	}
	ceph.Ceph(t, "osd", "pool", "application", "enable", name, "cephfs")
	for what, err := range map[string]error{"check": c.CheckPool(ctx, name), "ensure": c.EnsurePool(ctx, name)} {
		if !errors.Is(err, ErrPoolNotReady) || !strings.Contains(err.Error(), "belongs to cephfs") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestPoolCapacityHeedsTheQuota(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	got, err := c.PoolCapacity(ctx, pool)
	for i := 0; errors.Is(err, ErrUnavailable) && i < 200; i++ { // the statistics of a new pool take a moment
		time.Sleep(100 * time.Millisecond)
		got, err = c.PoolCapacity(ctx, pool)
	}
	if err != nil || got.AvailableBytes <= 1<<20 || got.QuotaBytes != 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
	ceph.Ceph(t, "osd", "pool", "set-quota", pool, "max_bytes", fmt.Sprint(1<<20))
	if got, err := c.PoolCapacity(ctx, pool); err != nil || got.AvailableBytes > 1<<20 || got.QuotaBytes != 1<<20 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestAFullPoolSaysSoAndLetsDelete(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	must(t, c.CreateImage(ctx, spec(pool, "a")))
	ceph.Ceph(t, "osd", "pool", "set-quota", pool, "max_objects", "1")
	deadline := time.Now().Add(60 * time.Second)
	for i := 0; ; i++ {
		err := c.CreateImage(within(t, 10*time.Second), spec(pool, fmt.Sprint("b", i)))
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("create %d: %v", i, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	must(t, c.DeleteImage(within(t, 10*time.Second), ImageRef{pool, "a"}))
	if left, err := c.EmptyTrash(within(t, 10*time.Second), pool); err != nil {
		t.Fatalf("%d left, %v", left, err)
	}
	ceph.Ceph(t, "osd", "pool", "set-quota", pool, "max_objects", "0")
	for i := 0; ; i++ {
		if err := c.CreateImage(within(t, 10*time.Second), spec(pool, "again")); err == nil {
			break
		} else if !errors.Is(err, ErrFull) || time.Now().After(deadline) {
			t.Fatalf("after the quota is gone: %v", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

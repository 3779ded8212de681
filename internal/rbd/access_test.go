package rbd

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

func TestBlocklist(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	const address = "192.0.2.7:0/4711"
	has := func() *BlocklistEntry {
		t.Helper()
		all, err := c.Blocklist(ctx)
		must(t, err)
		if i := slices.IndexFunc(all, func(e BlocklistEntry) bool { return e.Address == address }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	must(t, c.BlocklistRemove(ctx, address)) // not there is no error
	for range 2 {
		must(t, c.BlocklistAdd(ctx, address, BlocklistForGood))
		if e := has(); e == nil || time.Until(e.Until) < BlocklistForGood-time.Hour {
			t.Fatalf("got %+v", e)
		}
	}
	for range 2 {
		must(t, c.BlocklistRemove(ctx, address))
		if e := has(); e != nil {
			t.Fatalf("still there: %+v", e)
		}
	}
}

// TestAnEntryThatEndsTooEarlyIsReplaced: Ceph answers an add with the new end also where it keeps
// the end of an entry that exists.
func TestAnEntryThatEndsTooEarlyIsReplaced(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	const address = "192.0.2.8:0/4711"
	t.Cleanup(func() { _ = c.BlocklistRemove(context.Background(), address) })
	life := func() time.Duration {
		t.Helper()
		all, err := c.Blocklist(ctx)
		must(t, err)
		for _, e := range all {
			if e.Address == address {
				return time.Until(e.Until)
			}
		}
		t.Fatal("the client is not on the list")
		return 0
	}
	must(t, c.BlocklistAdd(ctx, address, time.Minute))
	must(t, c.BlocklistAdd(ctx, address, BlocklistForGood))
	if got := life(); got < BlocklistForGood-time.Hour {
		t.Errorf("the client is fenced for another %v, not for good", got)
	}
	must(t, c.BlocklistAdd(ctx, address, time.Minute))
	if got := life(); got < BlocklistForGood-time.Hour {
		t.Errorf("a fence for a minute cut a longer one to %v", got)
	}
}

func TestAnAddressMayBeSpeltInAnyWay(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	for _, address := range []string{"[2001:DB8:0:0::7]:0/4711", "[2001:db8::8]:0/4711"} {
		must(t, c.BlocklistAdd(ctx, address, BlocklistForGood))
		must(t, c.BlocklistRemove(ctx, address))
	}
}

func TestBlocklistingAWholeHostIsRefused(t *testing.T) {
	c, ctx := open(t, ceph, Options{}), t.Context()
	for _, address := range []string{"192.0.2.7", "192.0.2.7:0", "192.0.2.7:0/0", "192.0.2.7:0/", ""} {
		if err := c.BlocklistAdd(ctx, address, time.Hour); !errors.Is(err, ErrInvalid) {
			t.Errorf("add %q: %v", address, err)
		}
		if err := c.BlocklistRemove(ctx, address); !errors.Is(err, ErrInvalid) {
			t.Errorf("remove %q: %v", address, err)
		}
	}
	if err := c.BlocklistAdd(ctx, "192.0.2.7:0/1", 0); !errors.Is(err, ErrInvalid) {
		t.Errorf("no time: %v", err)
	}
}

// TestABlocklistedConnectionIsReplaced: the owner of an open image is blocklisted and loses it; and
// this package, when it is hit itself, comes back with a new connection.
func TestABlocklistedConnectionIsReplaced(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{Connections: 1}), newPool(t), t.Context()
	other := open(t, ceph, Options{})
	must(t, c.CreateImage(ctx, spec(pool, "a")))
	c.links[0].mu.Lock()
	address, err := c.links[0].conn.conn.GetAddrs()
	c.links[0].mu.Unlock()
	must(t, err)
	t.Log("own address", address)
	must(t, other.BlocklistAdd(ctx, address, time.Hour))
	t.Cleanup(func() { _ = other.BlocklistRemove(ctx, address) })
	var failures []error
	for range 50 {
		err := c.CreateImage(within(t, 10*time.Second), spec(pool, "b"))
		if err == nil {
			if len(failures) == 0 {
				t.Error("the blocklist was not felt")
			}
			return
		}
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		failures = append(failures, err)
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("never came back: %v", failures[len(failures)-1])
}

// A change that outlives its call has the image open, and its lock. This process is no user of the image that could be fenced.
func TestThisProcessIsNoUserOfAnImage(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	inPool(t, c, pool, func(io *rados.IOContext) error {
		image, err := librbd.OpenImage(io, s.Name, librbd.NoSnapshot)
		must(t, err)
		defer func() { must(t, image.Close()) }()
		must(t, image.LockAcquire(librbd.LockModeExclusive))
		if w, err := c.Watchers(ctx, s.ImageRef); err != nil || len(w) > 0 {
			t.Errorf("watchers %+v, %v", w, err)
		}
		if o, err := c.LockOwner(ctx, s.ImageRef); err != nil || o != nil {
			t.Errorf("lock owner %+v, %v", o, err)
		}
		return nil
	})
}

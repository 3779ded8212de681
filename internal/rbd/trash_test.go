package rbd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

func TestCreateAndDeleteStormsLeaveNothing(t *testing.T) {
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
	for _, err := range inParallel(50, func(i int) error {
		for round := range 3 {
			s := spec(pool, fmt.Sprint("v", i%25)) // two at a time fight for each name
			if err := c.CreateImage(ctx, s); err != nil && !errors.Is(err, ErrExists) {
				return fmt.Errorf("round %d: %w", round, err)
			}
			if err := c.DeleteImage(ctx, s.ImageRef); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrBusy) {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
		return nil
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	names, err := c.ListImages(ctx, pool)
	must(t, err)
	for _, name := range names {
		must(t, c.DeleteImage(ctx, ImageRef{pool, name}))
	}
	waitForEmptyPool(t, c, pool)
	// The last purge may not have heard yet that all is gone. Run must not end before.
	remembered := func() int {
		c.trash.mu.Lock()
		defer c.trash.mu.Unlock()
		return len(c.trash.mine)
	}
	for deadline := time.Now().Add(30 * time.Second); remembered() != 0 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}
	if n := remembered(); n != 0 {
		t.Errorf("%d purged images are still remembered", n)
	}
	stop()
	<-ended
}

// waitForEmptyPool waits until no object is left in a pool but those that every RBD pool has.
func waitForEmptyPool(t *testing.T, c *Cluster, pool string) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		objects, err := call(t.Context(), c, "objects", pool, func(conn *rados.Conn) ([]string, error) {
			return withPool(conn, pool, func(io *rados.IOContext) ([]string, error) {
				var names []string
				return names, io.ListObjects(func(name string) { names = append(names, name) })
			})
		})
		must(t, err)
		left = left[:0]
		for _, name := range objects {
			if name != "rbd_info" && name != "rbd_directory" && name != "rbd_trash" && name != "rbd_children" {
				left = append(left, name)
			}
		}
		if len(left) == 0 {
			return
		}
	}
	t.Fatalf("left in pool %s: %s", pool, strings.Join(left[:min(20, len(left))], " "))
}

func TestTrashOfOthersIsLeftAlone(t *testing.T) {
	pool, ctx := newPool(t), t.Context()
	dir := configDir(t, ceph.Conf(), ceph.AdminKeyring())
	c, earlier := open(t, ceph, Options{Dir: dir}), open(t, ceph, Options{Dir: dir})
	for _, name := range []string{"mine-1", "foreign"} {
		must(t, earlier.CreateImage(ctx, spec(pool, name)))
		must(t, earlier.DeleteImage(ctx, ImageRef{pool, name}))
	}
	names := func() (out []string) {
		all, err := c.TrashedImages(ctx, pool)
		must(t, err)
		for _, e := range all {
			out = append(out, e.Name)
		}
		return out
	}
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil || len(names()) != 2 {
		t.Fatalf("without an owner: %d left, %v, trash %v", left, err, names())
	}
	owner := open(t, ceph, Options{Dir: dir, OwnsTrash: func(name string) bool { return strings.HasPrefix(name, "mine-") }})
	if left, err := owner.EmptyTrash(ctx, pool); left != 0 || err != nil || len(names()) != 1 || names()[0] != "foreign" {
		t.Fatalf("the owner: %d left, %v, trash %v", left, err, names())
	}
}

// TestAnotherProcessFindsTheTrash: what was deleted and not purged when a process died is purged by
// the next one's Run.
func TestAnotherProcessFindsTheTrash(t *testing.T) {
	pool := newPool(t)
	dir := configDir(t, ceph.Conf(), ceph.AdminKeyring())
	first := open(t, ceph, Options{Dir: dir})
	must(t, first.CreateImage(t.Context(), spec(pool, "mine-1")))
	must(t, first.DeleteImage(t.Context(), ImageRef{pool, "mine-1"}))

	clusters := NewClusters(Options{Dir: dir, OwnsTrash: func(name string) bool { return strings.HasPrefix(name, "mine-") }})
	t.Cleanup(clusters.Close)
	c, err := clusters.Get(testCluster)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		clusters.Run(ctx, slog.New(slog.DiscardHandler))
	}()
	c.WatchTrash(pool)
	waitForEmptyPool(t, c, pool)
	stop()
	<-ended
}

// Ceph may list a client that died for ever. Before its entry ends nobody but an operator lets it in again.
func TestAFencedClientDoesNotUseAnImage(t *testing.T) {
	later, earlier := time.Now().Add(time.Hour), time.Now().Add(-time.Second)
	entries := []BlocklistEntry{{"192.0.2.1:0/1", later}, {"[2001:db8::1]:0/2", later}, {"192.0.2.1:0/3", earlier}}
	for addresses, want := range map[[2]string]error{
		{"192.0.2.1:0/1", "[2001:db8:0::1]:0/2"}: nil,
		{"192.0.2.1:0/1", "192.0.2.1:0/2"}:       ErrBusy, // another process of that host
		{"192.0.2.1:0/3", "192.0.2.1:0/1"}:       ErrBusy, // its entry has ended
	} {
		if err := inUse([]librbd.ImageWatcher{{Addr: addresses[0]}, {Addr: addresses[1]}}, entries); !errors.Is(err, want) {
			t.Errorf("%v: got %v, want %v", addresses, err, want)
		}
	}
}

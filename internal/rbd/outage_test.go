package rbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/cephtest"
)

func TestWrongKeyIsRefusedAndARightOneIsPickedUp(t *testing.T) {
	dir := configDir(t, ceph.Conf(), ceph.AdminKeyring())
	ring := filepath.Join(dir, testCluster, keyringFile)
	right, err := os.ReadFile(ring)
	must(t, err)
	writeFile(t, ring, "[client.admin]\n\tkey = AQAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAAAA==\n")
	c := open(t, ceph, Options{Dir: dir, Recheck: time.Hour}) // an error is reason enough to look again
	for range 3 {
		if err := c.Ping(within(t, 20*time.Second)); !errors.Is(err, ErrPermission) || !strings.Contains(err.Error(), "client.admin: check the key") {
			t.Fatalf("got %v", err)
		}
	}
	writeFile(t, ring, string(right))
	must(t, c.Ping(within(t, 20*time.Second)))
}

func TestChangedCredentialsArePickedUp(t *testing.T) {
	caps := map[string]string{"mon": "profile rbd", "osd": "profile rbd"}
	dir := configDir(t, ceph.Conf(), ceph.User(t, "client.first", caps))
	c, ctx := open(t, ceph, Options{Dir: dir, Recheck: time.Millisecond}), t.Context()
	must(t, c.Ping(ctx))
	copyFile(t, ceph.User(t, "client.second", caps), filepath.Join(dir, testCluster, keyringFile))
	ceph.Ceph(t, "auth", "rm", "client.first")
	must(t, c.CreateImage(ctx, spec("rbd", "credentials")))
	must(t, c.DeleteImage(ctx, ImageRef{"rbd", "credentials"}))
	for _, l := range c.links {
		l.mu.Lock()
		if l.conn != nil && l.conn.from.user != "client.second" {
			t.Errorf("connection of %s", l.conn.from.user)
		}
		l.mu.Unlock()
	}

	// Files that are gone for a moment, or broken, change nothing.
	writeFile(t, filepath.Join(dir, testCluster, keyringFile), "[client.second]\n")
	must(t, c.Ping(ctx))
}

// TestTheUserNeedsOnlyTheRBDProfile says what docs may promise of the capabilities.
func TestTheUserNeedsOnlyTheRBDProfile(t *testing.T) {
	pool := newPool(t)
	ring := ceph.User(t, "client.least", map[string]string{
		"mon": `profile rbd, allow command "osd blocklist"`, "osd": "profile rbd pool=" + pool,
	})
	c, ctx := open(t, ceph, Options{Dir: configDir(t, ceph.Conf(), ring)}), t.Context()
	s := spec(pool, "a")
	must(t, c.CheckPool(ctx, pool))
	must(t, c.CreateImage(ctx, s))
	_, err := c.CreateSnapshot(ctx, SnapshotRef{s.ImageRef, "s"})
	must(t, err)
	must(t, c.RemoveSnapshot(ctx, SnapshotRef{s.ImageRef, "s"}))
	must(t, c.BlocklistAdd(ctx, "192.0.2.9:0/1", time.Hour))
	must(t, c.BlocklistRemove(ctx, "192.0.2.9:0/1"))
	_, err = c.Blocklist(ctx)
	must(t, err)
	if _, err := c.PoolCapacity(ctx, pool); err != nil && !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	must(t, c.DeleteImage(ctx, s.ImageRef))
	_, err = c.EmptyTrash(ctx, pool)
	must(t, err)
	for what, err := range map[string]error{
		"make a pool":  c.EnsurePool(ctx, "least-new"),
		"another pool": c.CreateImage(ctx, spec("rbd", "a")),
	} {
		if !errors.Is(err, ErrPermission) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestTheHostsUserFreesNoClient says what docs/security.md may promise of a key that was taken from
// a host.
func TestTheHostsUserFreesNoClient(t *testing.T) {
	pool := newPool(t)
	ring := ceph.User(t, "client.host", map[string]string{"mon": "profile rbd", "osd": "profile rbd pool=" + pool})
	c, ctx := open(t, ceph, Options{Dir: configDir(t, ceph.Conf(), ring)}), t.Context()
	must(t, c.BlocklistAdd(ctx, "192.0.2.10:0/1", time.Hour))
	for what, err := range map[string]error{
		"free a client": c.BlocklistRemove(ctx, "192.0.2.10:0/1"),
		"make a pool":   c.EnsurePool(ctx, "host-new"),
		"another pool":  c.CreateImage(ctx, spec("rbd", "a")),
	} {
		if !errors.Is(err, ErrPermission) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestNoMonitorIsSaidInTime(t *testing.T) {
	conf, err := os.ReadFile(ceph.Conf())
	must(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	must(t, err)
	defer listener.Close()
	for name, address := range map[string]string{"closed port": "127.0.0.1:1", "silent": listener.Addr().String()} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			dir := configDir(t, ceph.Conf(), ceph.AdminKeyring())
			var lines []string
			for line := range strings.SplitSeq(string(conf), "\n") {
				if strings.HasPrefix(strings.TrimSpace(line), "mon_host") {
					line = "mon_host = v1:" + address
				}
				lines = append(lines, line)
			}
			writeFile(t, filepath.Join(dir, testCluster, confFile), strings.Join(lines, "\n"))
			c := open(t, ceph, Options{Dir: dir, ConnectTimeout: 3 * time.Second, Recheck: time.Millisecond})
			began := time.Now()
			for _, err := range inParallel(40, func(int) error { return c.Ping(within(t, 2*time.Second)) }) {
				if !errors.Is(err, ErrUnavailable) {
					t.Errorf("got %v", err)
				}
			}
			if took := time.Since(began); took > 20*time.Second { // one after the other they would take 80 s
				t.Errorf("40 calls of 2 s took %s", took)
			}
			if err := c.Ping(within(t, 2*time.Second)); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "fsid") {
				t.Errorf("got %v", err)
			}
			copyFile(t, ceph.Conf(), filepath.Join(dir, testCluster, confFile))
			eventually(t, 30*time.Second, func() error { return c.Ping(within(t, 5*time.Second)) })
		})
	}
}

func eventually(t testing.TB, limit time.Duration, fn func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s still: %v", limit, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// created creates an image. A busy machine may need several of the client's short calls for that, and one that was given up may still
// take effect.
func created(t *testing.T, c *Cluster, name string) {
	t.Helper()
	eventually(t, 60*time.Second, func() error {
		if err := c.CreateImage(t.Context(), spec("rbd", name)); !errors.Is(err, ErrExists) {
			return err
		}
		return nil
	})
}

func TestAStalledOSDIsSaidInTimeAndNothingPilesUp(t *testing.T) {
	broken := cephtest.Start(t)
	c := open(t, broken, Options{CallTimeout: time.Second, OpTimeout: 5 * time.Second, MaxStuck: 4})
	created(t, c, "before")
	resume := broken.Stall(t)

	began := time.Now()
	for _, err := range inParallel(100, func(i int) error { return c.CreateImage(t.Context(), spec("rbd", fmt.Sprint("v", i))) }) {
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	if took := time.Since(began); took > 10*time.Second { // one after the other in 28 slots, up to Ceph's 5 s each, they would take 18 s
		t.Errorf("calls of 1 s took %s", took)
	}
	h := c.Health()
	if h.Stuck < 4 || h.Stuck > 28 || !h.Refusing || h.Oldest != "image_create" || time.Since(h.Since) < time.Second/2 {
		t.Errorf("health %+v", h)
	}
	began = time.Now()
	err := second(c.ImageInfo(t.Context(), ImageRef{"rbd", "before"}))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "calls hang, no new ones until one ends; the oldest is image_create, for") {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took >= time.Second {
		t.Errorf("the refusal took %s, as long as a call", took)
	}
	t.Log(err)

	resume()
	created(t, c, "after")
	eventually(t, 20*time.Second, func() error {
		if h := c.Health(); h.Stuck > 0 || h.Running > 0 {
			return fmt.Errorf("health %+v", h)
		}
		return nil
	})
	// What was given up is repeated, as a caller does, whether it took effect or not. A call of this
	// client may take longer than a second.
	patient := open(t, broken, Options{})
	for i := range 100 {
		if err := patient.CreateImage(t.Context(), spec("rbd", fmt.Sprint("v", i))); err != nil && !errors.Is(err, ErrExists) {
			t.Errorf("repeat %d: %v", i, err)
		}
	}
}

func TestCancellingIsTheCallersDoing(t *testing.T) {
	c := open(t, ceph, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Ping(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// Package cephtest starts a real Ceph on loopback for tests: monitor, manager, OSD in memory,
// cephx, pools rbd and fast. It starts in 3 to 8 s and ends with the test process, even if that is
// killed.
package cephtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/microceph"
)

const startTimeout = 5 * time.Minute

// Cluster is a running Ceph.
type Cluster struct {
	ceph *microceph.Cluster
}

// Run is for TestMain: it starts one cluster for all tests of a package, hands it to use, runs the
// tests and ends the cluster. The result is the exit code; if Ceph does not start, it is 1 and the
// reason is on stderr.
//
//	func TestMain(m *testing.M) { os.Exit(cephtest.Run(m, func(c *cephtest.Cluster) { cluster = c })) }
func Run(m *testing.M, use func(*Cluster)) int {
	dir, err := os.MkdirTemp("", "cephtest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "cephtest:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	cluster, err := start(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cephtest:", err)
		return 1
	}
	defer func() {
		if err := cluster.ceph.Stop(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "cephtest:", err)
		}
	}()
	use(cluster)
	return m.Run()
}

// Start starts a cluster for one test, which ends with it: for tests that break it, or fill it.
func Start(t testing.TB) *Cluster {
	t.Helper()
	cluster, err := start(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.ceph.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

func start(dir string) (*Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// The names of tests' directories are long, and a socket's path must not be.
	run, err := os.MkdirTemp("", "ceph-")
	if err != nil {
		return nil, err
	}
	ceph, err := microceph.Start(ctx, microceph.Config{
		Dir: filepath.Join(dir, "ceph"), RunDir: run, Address: "127.0.0.1",
		// Tests make and remove snapshots and pools all the time; a second for each would be most
		// of their time.
		ProposeInterval: 50 * time.Millisecond,
	})
	if err != nil {
		return nil, err
	}
	return &Cluster{ceph: ceph}, nil
}

// Conf is the path of ceph.conf; it leads to the keyring of every user of this cluster.
func (c *Cluster) Conf() string { return c.ceph.Conf() }

// AdminKeyring is the path of client.admin's keyring.
func (c *Cluster) AdminKeyring() string { return c.ceph.AdminKeyring() }

// FSID is the cluster's id.
func (c *Cluster) FSID() string { return c.ceph.FSID() }

// User makes a user (e.g. "client.escache") with capabilities by service and returns the path of
// its keyring.
func (c *Cluster) User(t testing.TB, name string, caps map[string]string) (keyringPath string) {
	t.Helper()
	keyringPath, err := c.ceph.CreateUser(t.Context(), name, caps)
	if err != nil {
		t.Fatal(err)
	}
	return keyringPath
}

// Pool makes a pool that is ready for RBD.
func (c *Cluster) Pool(t testing.TB, name string) {
	t.Helper()
	if err := c.ceph.CreatePool(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

// Ceph runs `ceph ARGS` as client.admin and returns its output.
func (c *Cluster) Ceph(t testing.TB, args ...string) string {
	t.Helper()
	out, err := c.ceph.Ceph(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Stall freezes the OSD until the returned function is called, or the test ends: reads and writes
// hang, the monitor answers.
func (c *Cluster) Stall(t testing.TB) (resume func()) {
	t.Helper()
	if err := c.ceph.Stall(t.Context()); err != nil {
		t.Fatal(err)
	}
	resume = func() {
		if err := c.ceph.Resume(context.Background()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(resume)
	return resume
}

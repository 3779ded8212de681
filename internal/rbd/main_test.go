package rbd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"

	"github.com/escache/escache-csi/test/cephtest"
)

// ceph is the cluster of all tests that do not break it.
var ceph *cephtest.Cluster

func TestMain(m *testing.M) {
	if os.Getenv(victimDir) != "" {
		os.Exit(m.Run()) // it uses its parent's
	}
	os.Exit(cephtest.Run(m, func(c *cephtest.Cluster) { ceph = c }))
}

const testCluster = "test"

// configDir makes a directory of clusters with one, reached as the user of that keyring.
func configDir(t testing.TB, conf, keyring string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, testCluster), 0o700); err != nil {
		t.Fatal(err)
	}
	copyFile(t, conf, filepath.Join(dir, testCluster, confFile))
	copyFile(t, keyring, filepath.Join(dir, testCluster, keyringFile))
	return dir
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, to, string(text))
}

// writeFile replaces a file as a mounted Secret does: never half written.
func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, c *cephtest.Cluster, options Options) *Cluster {
	t.Helper()
	if options.Dir == "" {
		options.Dir = configDir(t, c.Conf(), c.AdminKeyring())
	}
	clusters := NewClusters(options)
	t.Cleanup(clusters.Close)
	cluster, err := clusters.Get(testCluster)
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// newPool makes a pool of the test's own, and removes it with all images.
func newPool(t testing.TB) string {
	t.Helper()
	name := fmt.Sprintf("p%016x", rand.Uint64())
	ceph.Pool(t, name)
	t.Cleanup(func() { removePool(t, name) })
	return name
}

func spec(pool, name string) ImageSpec {
	return ImageSpec{ImageRef: ImageRef{Pool: pool, Name: name}, SizeBytes: 64 << 20}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inPool runs do with the pool open.
func inPool(t testing.TB, c *Cluster, pool string, do func(io *rados.IOContext) error) {
	t.Helper()
	_, err := call(t.Context(), c, "test", "", func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, pool, func(io *rados.IOContext) (struct{}, error) { return struct{}{}, do(io) })
	})
	must(t, err)
}

// inParallel runs fn n times at once and returns the errors in order.
func inParallel(n int, fn func(i int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	return errs
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func removePool(t testing.TB, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	clusters := NewClusters(Options{Dir: configDir(t, ceph.Conf(), ceph.AdminKeyring())})
	defer clusters.Close()
	c, err := clusters.Get(testCluster)
	if err != nil {
		t.Error(err)
		return
	}
	_, err = call(ctx, c, "pool_delete", name, func(conn *rados.Conn) ([]byte, error) {
		return sendCommand(conn, map[string]any{"prefix": "osd pool delete", "pool": name, "pool2": name, "yes_i_really_really_mean_it": true})
	})
	if err != nil {
		t.Logf("remove pool %s: %v", name, err)
	}
}

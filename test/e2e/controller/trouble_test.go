//go:build e2e

package controller

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// patience is less than the sidecars have, and much less than Ceph's own limits. It is for calls that end with it: whoever
// wants the driver's own error gives its call enough time.
const (
	patience = 4 * time.Second
	enough   = time.Minute
)

// trouble breaks one thing at a time. Each failure has the right code, in time, and passes by
// itself when its cause does.
func trouble(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	outage := []codes.Code{codes.Unavailable, codes.DeadlineExceeded}
	for _, tc := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"unknown pool", func(t *testing.T) {
			wants(t, d.createIn(t, enough, "pvc-t", clusterID, "nowhere"), []codes.Code{codes.InvalidArgument}, "nowhere")
		}},
		{"unknown cluster", func(t *testing.T) {
			wants(t, d.createIn(t, enough, "pvc-t", "nowhere", "rbd"), []codes.Code{codes.InvalidArgument}, "nowhere")
		}},
		{"wrong key", func(t *testing.T) {
			w.addCluster(t, "wrongkey", w.ceph.Conf(), w.foreignKeyring(t))
			wants(t, d.createIn(t, enough, "pvc-t", "wrongkey", "rbd"), []codes.Code{codes.FailedPrecondition}, "wrongkey")
			w.addCluster(t, "wrongkey", w.ceph.Conf(), w.ceph.AdminKeyring())
			eventually(t, 30*time.Second, func() bool { return d.createIn(t, enough, "pvc-t", "wrongkey", "rbd") == nil },
				func() string { return "the right key does not help" })
			until(t, func() error { return d.delete(t.Context(), "pvc-t") })
		}},
		{"Ceph down", func(t *testing.T) {
			conf := filepath.Join(t.TempDir(), "ceph.conf")
			must(t, os.WriteFile(conf, []byte("[global]\nmon_host = v1:127.0.0.1:1\n"), 0o600))
			w.addCluster(t, "down", conf, w.ceph.AdminKeyring())
			wants(t, d.createIn(t, enough, "pvc-t", "down", "rbd"), outage, "down")
			w.addCluster(t, "down", w.ceph.Conf(), w.ceph.AdminKeyring())
			eventually(t, time.Minute, func() bool { return d.createIn(t, enough, "pvc-t", "down", "rbd") == nil },
				func() string { return "the cluster is back and the driver does not notice" })
			until(t, func() error { return d.delete(t.Context(), "pvc-t") }) // one of its connections may still be dialling
		}},
		{"Ceph stalled", func(t *testing.T) {
			until(t, func() error { return d.create(t.Context(), "pvc-there") })
			resume := w.ceph.Stall(t)
			wants(t, d.createIn(t, patience, "pvc-t", clusterID, "rbd"), outage)
			wants(t, within(t, patience, func(ctx context.Context) error { return d.delete(ctx, "pvc-there") }), outage)
			if _, err := d.ListVolumes(t.Context(), &csi.ListVolumesRequest{}); err != nil {
				t.Errorf("a stalled Ceph stops what does not need it: %v", err)
			}
			resume()
			until(t, func() error { return d.createIn(t, enough, "pvc-t", clusterID, "rbd") })
			until(t, func() error { return d.delete(t.Context(), "pvc-t") })
			until(t, func() error { return d.delete(t.Context(), "pvc-there") })
		}},
		{"pool full", func(t *testing.T) {
			// Ceph counts what is in a pool, and looks at its quota, every five seconds.
			w.ceph.Ceph(t, "config", "set", "mgr", "mgr_stats_period", "1")
			w.ceph.Ceph(t, "config", "set", "mon", "mon_tick_interval", "1")
			w.ceph.Pool(t, "small")
			w.ceph.Ceph(t, "osd", "pool", "set-quota", "small", "max_objects", "1")
			full := append([]codes.Code{codes.ResourceExhausted}, outage...)
			made := 0
			eventually(t, time.Minute, func() bool {
				err := d.createIn(t, patience, fmt.Sprintf("pvc-%d", made), clusterID, "small")
				if err != nil {
					wants(t, err, full)
					return true
				}
				made++
				return false
			}, func() string { return fmt.Sprintf("%d images fit into a pool for one object", made) })
			w.ceph.Ceph(t, "osd", "pool", "set-quota", "small", "max_objects", "0")
			eventually(t, time.Minute, func() bool { return d.createIn(t, patience, fmt.Sprintf("pvc-%d", made), clusterID, "small") == nil },
				func() string { return "there is room again and the driver does not notice" })
			for i := range made + 1 {
				until(t, func() error { return d.delete(t.Context(), fmt.Sprintf("pvc-%d", i)) })
			}
		}},
		{"no room for the cache", func(t *testing.T) {
			r := creation("pvc-t")
			r.Parameters["cacheSize"] = "1Ti"
			_, err := d.CreateVolume(t.Context(), r)
			wants(t, err, []codes.Code{codes.ResourceExhausted}, "g1", "free")
		}},
		{"escached down", func(t *testing.T) { escachedDown(t, w, d) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.run(t)
			w.empty(t)
		})
	}
	d.bury()
	t.Run("API server down", func(t *testing.T) { apiServerDown(t, w) })
}

func (d *driver) createIn(t *testing.T, limit time.Duration, name, cluster, pool string) error {
	t.Helper()
	r := creation(name)
	r.Parameters["clusterID"], r.Parameters["pool"] = cluster, pool
	return within(t, limit, func(ctx context.Context) error {
		_, err := d.CreateVolume(ctx, r)
		return err
	})
}

// foreignKeyring has the right user with another cluster's key.
func (w *world) foreignKeyring(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keyring")
	must(t, os.WriteFile(path, []byte("[client.admin]\n\tkey = AQBGZ2ZoAAAAABAAuJ1p3Yx5C1yS2y3m8m4q7A==\n"), 0o600))
	return path
}

// escachedDown: creation goes on; a volume whose partner is away is attached with the third host;
// with two away it is not.
func escachedDown(t *testing.T, w *world, d *driver) {
	until(t, func() error { return d.create(t.Context(), crashed) })
	v := w.one(t)
	node, partner, spare := v.Spec.Replicas[0], v.Spec.Replicas[1], third(v)
	w.fleet.Hosts[partner].Stop()
	w.fleet.Hosts[spare].Stop()
	w.seenAway(t, v.Spec.Group, partner)
	w.seenAway(t, v.Spec.Group, spare)
	wants(t, within(t, enough, func(ctx context.Context) error { return d.publish(ctx, crashed, node) }),
		[]codes.Code{codes.Unavailable})
	until(t, func() error { return d.create(t.Context(), "pvc-elsewhere") })
	w.fleet.Hosts[spare].Restart(t)
	eventually(t, time.Minute, func() bool { return d.publish(t.Context(), crashed, node) == nil },
		func() string { return "two hosts are up and the volume is not attached" })
	if on := w.fleet.On(imageRef()); len(on) != 2 || !on[node] || !on[spare] {
		t.Errorf("replicas on %v", on)
	}
	w.fleet.Hosts[partner].Restart(t)
	// The partner's stale replica is removed meanwhile, which keeps the volume busy for a moment.
	until(t, func() error { return d.unpublish(t.Context(), crashed, node) })
	until(t, func() error { return d.delete(t.Context(), crashed) })
	until(t, func() error { return d.delete(t.Context(), "pvc-elsewhere") })
}

// apiServerDown: nothing is decided without the record. The leader cannot renew its lease, so it
// ends; another takes over when the API server is back.
func apiServerDown(t *testing.T, w *world) {
	a := w.launch(t, "b", brief...)
	leader(t, time.Minute, a)
	until(t, func() error { return a.create(t.Context(), "pvc-t") })
	startAgain := w.kube.StopAPIServer(t)
	wants(t, within(t, patience, func(ctx context.Context) error { return a.delete(ctx, "pvc-t") }),
		[]codes.Code{codes.Unavailable, codes.DeadlineExceeded})
	select {
	case <-a.ended:
	case <-time.After(time.Minute):
		t.Error("the leader does not end without its lease")
	}
	startAgain()
	a.bury()
	c := w.launch(t, "c", brief...)
	leader(t, time.Minute, c)
	until(t, func() error { return c.delete(t.Context(), "pvc-t") })
	w.empty(t)
}

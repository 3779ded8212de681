//go:build e2e

package controller

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// resizeScenes are attachments of a volume whose cache is to get another size: on a host that has a copy, and
// while the other host with a copy is away.
func resizeScenes() []scene {
	const wanted = 128 << 20
	var away string
	prepare := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.create(t.Context(), crashed) })
		until(t, func() error { return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0]) })
		until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
		until(t, func() error { return d.modify(t.Context(), crashed, map[string]string{"cacheSize": "128Mi"}) })
	}
	// The volume is attached to the first replica's host at the first call, and stays there.
	call := func(t *testing.T, w *world, d *driver) error {
		v := w.one(t)
		node := v.Status.AttachedNode
		if node == "" {
			node = v.Spec.Replicas[0]
		}
		return d.publish(t.Context(), crashed, node)
	}
	check := func(t *testing.T, w *world) {
		v := w.one(t)
		w.attached(t, v.Status.AttachedNode)
		if v.Spec.CacheBytes != wanted || v.Spec.WantedCacheBytes != 0 {
			t.Errorf("record %+v", v.Spec)
		}
		for _, node := range v.Spec.Replicas {
			if got := w.fleet.Hosts[node].Status(imageRef()).CacheBytes; got != wanted {
				t.Errorf("the copy on %s has %d bytes", node, got)
			}
		}
	}
	clean := func(t *testing.T, _ *world, d *driver) {
		until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
		until(t, func() error { return d.delete(t.Context(), crashed) })
	}
	return []scene{
		{name: "ControllerPublishVolume with another size of the cache", prepare: prepare, call: call, check: check, clean: clean},
		{
			name: "ControllerPublishVolume with another size of the cache while the host of a replica is away", call: call,
			prepare: func(t *testing.T, w *world, d *driver) {
				prepare(t, w, d)
				v := w.one(t)
				away = v.Spec.Replicas[1]
				w.fleet.Hosts[away].Stop()
				w.seenAway(t, v.Spec.Group, away)
			},
			check: func(t *testing.T, w *world) {
				w.fleet.Hosts[away].Restart(t) // what it has is removed, and is not used
				if v := w.one(t); v.Spec.HasReplica(away) {
					t.Errorf("record %+v", v.Spec)
				}
				w.onlyOnReplicas(t)
				check(t, w)
			},
			clean: clean,
		},
	}
}

// seenAway waits until csi-controller knows that a host does not answer. Until then it plans with that host.
func (w *world) seenAway(t *testing.T, group, node string) {
	t.Helper()
	g := &v1alpha1.NodeGroup{}
	eventually(t, time.Minute, func() bool {
		must(t, w.api.Get(t.Context(), client.ObjectKey{Name: group}, g))
		at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == node })
		return at >= 0 && !g.Status.Members[at].Ready
	}, func() string { return fmt.Sprintf("%s counts as ready: %+v", node, g.Status.Members) })
}

// onlyOnReplicas waits until only the hosts on record have replicas.
func (w *world) onlyOnReplicas(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, func() bool {
		v, on := w.one(t), w.fleet.On(imageRef())
		return len(on) == 2 && on[v.Spec.Replicas[0]] && on[v.Spec.Replicas[1]]
	}, func() string { return "replicas are left on a host that is not on record" })
}

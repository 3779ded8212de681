//go:build e2e

package controller

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/hosttest"
)

// repairPoints are the steps of a repair with a side effect. Other scenes have those of its drain.
var repairPoints = []string{
	"repair/begun", "repair/substitute_recorded", "repair/substitute_cleared", "repair/replica_moved", "repair/paired_on_substitute",
	"repair/paired_on_holder", "repair/copy_current", "repair/ended",
}

// loss is an attached, dirty volume whose second copy is lost with its host, and what the played hosts have of it.
type loss struct {
	holder, lost, fresh string

	linked time.Time // when the new copy began to be filled; zero: it has not
	filled bool
}

// repairScenes kill the leader at each step of a repair.
func repairScenes() []scene {
	l := &loss{}
	return []scene{{
		name: "repair of a lost copy", points: repairPoints, prepare: l.happen, call: l.repaired, check: l.check,
		clean: func(t *testing.T, w *world, d *driver) {
			w.fleet.Hosts[l.holder].Release(imageRef())
			until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
			until(t, func() error { return d.delete(t.Context(), crashed) })
		},
	}}
}

// happen has the host of the second copy die. The holder has put that on record, and goes on.
func (l *loss) happen(t *testing.T, w *world, d *driver) {
	until(t, func() error { return d.create(t.Context(), crashed) })
	v := w.one(t)
	*l = loss{holder: v.Spec.Replicas[0], lost: v.Spec.Replicas[1], fresh: third(v)}
	until(t, func() error { return d.publish(t.Context(), crashed, l.holder) })
	h := w.fleet.Hosts[l.holder]
	h.Stage(imageRef(), "127.0.0.1:0/4711", w.one(t).Status.Epoch, escache.ModeWriteback)
	for _, node := range v.Spec.Replicas {
		w.fleet.Hosts[node].Write(imageRef(), 4<<20)
	}
	// What an earlier attachment has left on the third host must not be taken for a copy.
	must(t, w.fleet.Hosts[l.fresh].Lay(escache.ReplicaRequest{
		VolumeRef: imageRef(), SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor), Secret: "an old one",
	}))
	w.fleet.Hosts[l.lost].Stop()
	h.See(imageRef(), l.lost, escache.LinkWFConnection, escache.DiskUnknown)
	v = w.one(t)
	v.Status.Outdated = []string{l.lost}
	must(t, w.api.Status().Update(t.Context(), v))
	eventually(t, 30*time.Second, func() bool {
		return slices.ContainsFunc(w.group(t, v.Spec.Group).Status.Members, func(m v1alpha1.NodeGroupMember) bool {
			return m.Name == l.lost && !m.Ready && m.LastSeen != nil
		})
	}, func() string { return "nobody misses node " + l.lost })
}

// repaired asks for the repair, as kubectl escache repair does, and plays the hosts until it is over or the leader is dead.
func (l *loss) repaired(t *testing.T, w *world, d *driver) error {
	if v := w.one(t); v.Spec.HasReplica(l.lost) && v.Status.Repair == nil {
		must(t, w.api.Patch(t.Context(), v, client.RawPatch(types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"now"}}}`, v1alpha1.AnnotationRepair))))
	}
	var v *v1alpha1.CacheVolume
	for end := time.Now().Add(time.Minute); d.alive() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		l.play(w)
		v = w.one(t)
		l.look(t, v)
		_, asked := v.Annotations[v1alpha1.AnnotationRepair]
		if !asked && v.Spec.HasReplica(l.fresh) && len(v.Status.Outdated) == 0 && v.Status.Repair == nil {
			return nil
		}
	}
	return status.Errorf(codes.Unavailable, "not repaired: %+v, %+v", v.Spec, v.Status)
}

// play plays the kernel of the holder: what writes through becomes clean, and a new partner is filled once it is there.
func (l *loss) play(w *world) {
	h := w.fleet.Hosts[l.holder]
	if h.Status(imageRef()).Mode == escache.ModeWritethrough {
		h.Write(imageRef(), 0)
	}
	if h.Partner(imageRef()) != l.fresh || !w.fleet.Hosts[l.fresh].Has(imageRef()) {
		return
	}
	switch {
	case l.linked.IsZero():
		l.linked = time.Now()
		h.Sync(imageRef(), 50)
	case !l.filled && time.Since(l.linked) > 1500*time.Millisecond:
		l.filled = true
		h.Sync(imageRef(), 100)
	}
}

// look fails if a copy counts that is not current: the lost one, or the new one before it is filled.
func (l *loss) look(t *testing.T, v *v1alpha1.CacheVolume) {
	t.Helper()
	if v.Status.AttachedNode != l.holder || v.Status.IsOutdated(l.holder) {
		t.Errorf("node %s has the only current copy: %+v", l.holder, v.Status)
	}
	if v.Spec.HasReplica(l.lost) && !v.Status.IsOutdated(l.lost) {
		t.Errorf("the lost copy on %s counts: %+v", l.lost, v.Status)
	}
	if v.Spec.HasReplica(l.fresh) && !v.Status.IsOutdated(l.fresh) && !l.filled {
		t.Errorf("the copy on %s counts, and is not filled: %+v", l.fresh, v.Status)
	}
}

// check fails unless record and hosts have the same two copies, with one secret, and the lost copy goes when its host is back.
func (l *loss) check(t *testing.T, w *world) {
	t.Helper()
	l.pair(t, w)
	w.fleet.Hosts[l.lost].Restart(t)
	l.wiped(t, w)
}

// pair fails unless record and hosts have the same two copies, with one secret.
func (l *loss) pair(t *testing.T, w *world) {
	t.Helper()
	v := w.one(t)
	holder, fresh := w.fleet.Hosts[l.holder], w.fleet.Hosts[l.fresh]
	if s := v.Status; len(s.Outdated) > 0 || len(s.WriteThrough) > 0 || s.Authority != v1alpha1.AuthorityCache || s.AttachedNode != l.holder {
		t.Errorf("status %+v", s)
	}
	if slices.Sort(v.Spec.Replicas); !slices.Equal(v.Spec.Replicas, slices.Sorted(slices.Values([]string{l.holder, l.fresh}))) {
		t.Errorf("the record has %v, the holder is %s", v.Spec.Replicas, l.holder)
	}
	for node, h := range map[string]*hosttest.Host{l.holder: holder, l.fresh: fresh} {
		if id := h.Status(imageRef()).HostID; v.Status.HostID(node) != id {
			t.Errorf("the record knows node %s as %q, it is %q", node, v.Status.HostID(node), id)
		}
	}
	if secret := holder.Secret(imageRef()); secret == "" || fresh.Secret(imageRef()) != secret || holder.Partner(imageRef()) != l.fresh {
		t.Errorf("%s and %s are no partners", l.holder, l.fresh)
	}
	if mode := holder.Status(imageRef()).Mode; mode != escache.ModeWriteback {
		t.Errorf("the volume is left %s", mode)
	}
}

// wiped fails unless only the holder and the new host have a replica.
func (l *loss) wiped(t *testing.T, w *world) {
	t.Helper()
	eventually(t, 30*time.Second, func() bool {
		return maps.Equal(w.fleet.On(imageRef()), map[string]bool{l.holder: true, l.fresh: true}) &&
			len(w.group(t, w.one(t).Spec.Group).Status.StaleReplicas) == 0
	}, func() string { return fmt.Sprintf("replicas on %v", w.fleet.On(imageRef())) })
}

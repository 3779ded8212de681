//go:build e2e

package controller

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// leaving is an attached, dirty volume whose second copy leaves its host, which is evacuated. Here lost is that host.
type leaving struct{ loss }

// leavingScenes kill the leader at each step of the move of a second copy, and where its drain begins and ends.
func leavingScenes() []scene {
	l := &leaving{}
	return []scene{{
		name: "move of a second copy off an evacuated host", prepare: l.begin, call: l.moved,
		points: append(slices.Clone(repairPoints), "drain/settled", "drain/to_cache", "drain/restored"),
		check:  func(t *testing.T, w *world) { l.pair(t, w); l.wiped(t, w) },
		clean: func(t *testing.T, w *world, d *driver) {
			l.uncordon(t, w)
			w.fleet.Hosts[l.holder].Release(imageRef())
			until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
			until(t, func() error { return d.delete(t.Context(), crashed) })
		},
	}}
}

// begin has the volume in use, with two current copies, and something old on the third host.
func (l *leaving) begin(t *testing.T, w *world, d *driver) {
	until(t, func() error { return d.create(t.Context(), crashed) })
	v := w.one(t)
	l.loss = loss{holder: v.Spec.Replicas[0], lost: v.Spec.Replicas[1], fresh: third(v)}
	until(t, func() error { return d.publish(t.Context(), crashed, l.holder) })
	h := w.fleet.Hosts[l.holder]
	h.Stage(imageRef(), "127.0.0.1:0/4713", w.one(t).Status.Epoch, escache.ModeWriteback)
	h.Sync(imageRef(), 100)
	for _, node := range v.Spec.Replicas {
		w.fleet.Hosts[node].Write(imageRef(), 4<<20)
	}
	must(t, w.fleet.Hosts[l.fresh].Lay(escache.ReplicaRequest{
		VolumeRef: imageRef(), SizeBytes: v.Spec.SizeBytes, CacheBytes: v.Spec.CacheBytes,
		Port: int(v.Spec.Port), Minor: int(v.Spec.Minor), Secret: "an old one",
	}))
}

func (l *leaving) evacuation() *v1alpha1.CacheFlush {
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate-" + l.lost}}
	f.Spec = v1alpha1.CacheFlushSpec{Node: l.lost, Mode: v1alpha1.FlushModeDrain, SecondCopies: true, MoveSecondCopies: true}
	return f
}

// cordon says which hosts of the volume's group get nothing new.
func (l *leaving) cordon(t *testing.T, w *world, nodes ...string) {
	t.Helper()
	g := w.group(t, w.one(t).Spec.Group)
	before := g.DeepCopy()
	g.Spec.CordonedNodes = nodes
	must(t, w.api.Patch(t.Context(), g, client.MergeFrom(before)))
}

func (l *leaving) uncordon(t *testing.T, w *world) {
	t.Helper()
	must(t, client.IgnoreNotFound(w.api.Delete(t.Context(), l.evacuation())))
	eventually(t, time.Minute, func() bool {
		return apierrors.IsNotFound(w.api.Get(t.Context(), client.ObjectKeyFromObject(l.evacuation()), l.evacuation()))
	}, func() string { return "the evacuation does not end" })
	l.cordon(t, w)
}

// moved evacuates the host, as kubectl escache evacuate does, and plays the hosts until the volume writes back again or
// the leader is dead.
func (l *leaving) moved(t *testing.T, w *world, d *driver) error {
	l.cordon(t, w, l.lost)
	if err := w.api.Create(t.Context(), l.evacuation()); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	var v *v1alpha1.CacheVolume
	for end := time.Now().Add(time.Minute); d.alive() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		l.play(w)
		mode := w.fleet.Hosts[l.holder].Status(imageRef()).Mode // the record is read after it
		v = w.one(t)
		l.look(t, v, mode)
		if v.Spec.HasReplica(l.fresh) && len(v.Status.Outdated)+len(v.Status.WriteThrough) == 0 && v.Status.Repair == nil {
			return nil
		}
	}
	return status.Errorf(codes.Unavailable, "not moved: %+v, %+v", v.Spec, v.Status)
}

// look fails if the volume may become dirty on one copy, or if the new copy counts before it is filled.
func (l *leaving) look(t *testing.T, v *v1alpha1.CacheVolume, mode escache.Mode) {
	t.Helper()
	one := slices.ContainsFunc(v.Spec.Replicas, v.Status.IsOutdated)
	if one && (v.Status.Authority != v1alpha1.AuthorityCeph || mode != escache.ModeWritethrough) {
		t.Errorf("it may become dirty on one copy: it is %s, replicas %v, status %+v", mode, v.Spec.Replicas, v.Status)
	}
	if v.Status.AttachedNode != l.holder || v.Status.IsOutdated(l.holder) {
		t.Errorf("node %s has the only copy that counts all the time: %+v", l.holder, v.Status)
	}
	if v.Spec.HasReplica(l.fresh) && !v.Status.IsOutdated(l.fresh) && !l.filled {
		t.Errorf("the copy on %s counts, and is not filled: %+v", l.fresh, v.Status)
	}
}

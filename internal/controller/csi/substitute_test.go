package csi_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// widow makes an attached volume whose partner's host is dead, with a repair on record.
func (w *world) widow(name string) (v *v1alpha1.CacheVolume, holder, lost, third string) {
	w.t.Helper()
	v = w.create(name)
	holder, lost, third = v.Spec.Replicas[0], v.Spec.Replicas[1], other(v)
	_, err := w.publish(name, holder)
	must(w.t, err)
	w.host(holder).Connect(ref(v), "10.0.0.1:0/1")
	w.host(lost).Stop()
	w.poll()
	v = w.volume(name)
	v.Status.Outdated = []string{lost}
	v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: v.Status.Epoch, Lost: lost, Since: metav1.Now()}
	must(w.t, w.api.Status().Update(context.Background(), v))
	return w.volume(name), holder, lost, third
}

func (w *world) epoch(host, volume string) {
	v := w.volume(volume)
	w.host(host).SetEpoch(ref(v), v.Status.Epoch)
}

func TestLostReplicaIsReplacedWhileTheVolumeIsAttached(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.widow("pvc-1")
	w.epoch(holder, "pvc-1")
	able, err := w.locked.Substitutes(v, lost, volumes.ElsewhereIfAway)
	must(t, err)
	must(t, w.locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	now := w.volume("pvc-1")
	if !slices.Equal(able, []string{third}) || !slices.Equal(now.Spec.Replicas, []string{holder, third}) || !now.Status.IsOutdated(third) ||
		now.Status.AttachedNode != holder || now.Status.Repair.Substitute != third {
		t.Errorf("%v can get it, replicas %v, status %+v", able, now.Spec.Replicas, now.Status)
	}
	group := &v1alpha1.NodeGroup{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != lost {
		t.Errorf("stale %+v", s)
	}

	step := func(linked, done bool) {
		t.Helper()
		c, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
		must(t, err)
		if c.To != third || c.Linked != linked || c.Done != done {
			t.Errorf("got %+v", c)
		}
		if w.volume("pvc-1").Status.IsOutdated(third) == done {
			t.Errorf("outdated %v after %+v", w.volume("pvc-1").Status.Outdated, c)
		}
	}
	step(false, false)
	if !w.host(third).Has(ref(v)) || w.host(holder).Partner(ref(v)) != third {
		t.Errorf("replica there: %v, partner %s", w.host(third).Has(ref(v)), w.host(holder).Partner(ref(v)))
	}
	step(false, false) // they have not found each other yet
	w.host(holder).Sync(ref(v), 40)
	step(true, false)
	// Until the copy is complete it is no copy: the third node does not get the volume when the
	// holder dies.
	w.taint(holder)
	must(t, w.unpublish("pvc-1", holder))
	_, err = w.publish("pvc-1", third)
	wants(t, err, codes.FailedPrecondition, "has no current copy")
}

func TestCompleteCopyIsCurrentAndTheLostOneWiped(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.widow("pvc-1")
	w.epoch(holder, "pvc-1")
	must(t, w.locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	must(t, err)
	w.host(holder).Sync(ref(v), 100)
	w.host(holder).SetEpoch(ref(v), v.Status.Epoch-1)
	if c, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch); err != nil || c.Done {
		t.Errorf("an earlier attachment's answer counted: %+v, %v", c, err)
	}
	w.host(holder).SetEpoch(ref(v), v.Status.Epoch+1)
	if c, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch); !errors.Is(err, authority.ErrRecordBehind) || c.Done {
		t.Errorf("a later attachment's answer counted: %+v, %v", c, err)
	}
	w.host(holder).SetEpoch(ref(v), v.Status.Epoch)
	c, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	must(t, err)
	if s := w.volume("pvc-1").Status; !c.Done || len(s.Outdated) > 0 {
		t.Errorf("%+v, outdated %v", c, s.Outdated)
	}
	w.host(lost).Restart(t)
	w.poll()
	if w.host(lost).Has(ref(v)) {
		t.Error("the lost replica is still there")
	}
	// The holder dies, and the third node has everything.
	w.host(holder).Stop()
	w.taint(holder)
	must(t, w.unpublish("pvc-1", holder))
	_, err = w.publish("pvc-1", third)
	must(t, err)
}

// The volume is drained, so its record says that the truth is in Ceph. The lost copy has seen this
// attachment, and is dirty.
func TestTheReplacedCopyOfADrainedVolumeIsWiped(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.widow("pvc-1")
	w.epoch(holder, "pvc-1")
	w.epoch(lost, "pvc-1")
	w.host(lost).Change(ref(v), func(s *escache.VolumeStatus) { *s.DirtyBytes = 4096 })
	v.Status.Authority, v.Status.WriteThrough = v1alpha1.AuthorityCeph, []v1alpha1.WriteThroughClaim{{
		Owner: "repair", Epoch: v.Status.Epoch, Since: metav1.Now(),
	}}
	must(t, w.api.Status().Update(t.Context(), v))
	must(t, w.locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	must(t, err)
	w.host(holder).Sync(ref(v), 100)
	c, err := w.locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	must(t, err)
	w.host(lost).Restart(t)
	w.poll()
	if !c.Done || w.host(lost).Has(ref(v)) {
		t.Errorf("the lost replica is still there; %+v", c)
	}
}

func TestReplicaIsOnlyReplacedWithProof(t *testing.T) {
	for name, spoil := range map[string]func(w *world, v *v1alpha1.CacheVolume, holder, lost string){
		"the lost one is not on record as outdated": func(_ *world, v *v1alpha1.CacheVolume, _, _ string) { v.Status.Outdated = nil },
		"the holder is": func(_ *world, v *v1alpha1.CacheVolume, holder, lost string) {
			v.Status.Outdated = []string{holder, lost}
		},
		"detached meanwhile":  func(_ *world, v *v1alpha1.CacheVolume, _, _ string) { v.Status.AttachedNode = "" },
		"attached anew":       func(_ *world, v *v1alpha1.CacheVolume, _, _ string) { v.Status.Epoch++ },
		"no repair on record": func(_ *world, v *v1alpha1.CacheVolume, _, _ string) { v.Status.Repair = nil },
		"the host is back": func(w *world, _ *v1alpha1.CacheVolume, _, lost string) {
			w.host(lost).Restart(w.t)
			for _, n := range []string{"n1", "n2", "n3"} {
				if n != lost && w.volume("pvc-1").Status.AttachedNode != n {
					w.host(n).Stop()
				}
			}
			w.poll()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, lost, third := w.widow("pvc-1")
			epoch := v.Status.Epoch
			spoil(w, v, holder, lost)
			must(t, w.api.Status().Update(t.Context(), v))
			err := w.locked.Substitute(t.Context(), "pvc-1", epoch, lost, third, volumes.ElsewhereIfAway)
			if !errors.Is(err, volumes.ErrRefused) && volumes.Code(err) != codes.FailedPrecondition {
				t.Errorf("replaced by %s: %v", third, err)
			}
			if now := w.volume("pvc-1"); !now.Spec.HasReplica(lost) {
				t.Errorf("replicas %v", now.Spec.Replicas)
			}
		})
	}
}

// TestTheOnlyCopyIsNotReplaced: the record was set back within the attachment, to where the other copy was
// outdated. Since then that one was filled, and the holder's disk has failed: it lives from the copy that
// the record gives away. Repairs raise no epoch, so the host cannot know it by that.
func TestTheOnlyCopyIsNotReplaced(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, _ := w.widow("pvc-1")
	w.epoch(holder, "pvc-1")
	w.epoch(lost, "pvc-1")
	w.host(lost).Restart(t)
	w.poll()
	w.host(lost).Change(ref(v), func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{
			Name: holder, ConnectionState: escache.LinkConnected, DiskState: escache.DiskDiskless, Role: escache.RolePrimary,
		}}
	})
	err := w.locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, lost, volumes.Same)
	wants(t, err, codes.FailedPrecondition, "lives from this copy")
	if !w.host(lost).Has(ref(v)) {
		t.Error("the only copy is gone")
	}
}

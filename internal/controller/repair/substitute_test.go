package repair_test

import (
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
	"github.com/escache/escache-csi/test/csitest"
)

func TestLostReplicaIsReplacedWhileTheVolumeIsAttached(t *testing.T) {
	w := csitest.New(t)
	v, holder, lost, third := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	able, err := w.Locked.Substitutes(v, lost, volumes.ElsewhereIfAway)
	csitest.Must(t, err)
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	now := w.Volume("pvc-1")
	if !slices.Equal(able, []string{third}) || !slices.Equal(now.Spec.Replicas, []string{holder, third}) || !now.Status.IsOutdated(third) ||
		now.Status.AttachedNode != holder || now.Status.Repair.Substitute != third {
		t.Errorf("%v can get it, replicas %v, status %+v", able, now.Spec.Replicas, now.Status)
	}
	group := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != lost {
		t.Errorf("stale %+v", s)
	}

	step := func(linked, done bool) {
		t.Helper()
		c, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
		csitest.Must(t, err)
		if c.To != third || c.Linked != linked || c.Done != done {
			t.Errorf("got %+v", c)
		}
		if w.Volume("pvc-1").Status.IsOutdated(third) == done {
			t.Errorf("outdated %v after %+v", w.Volume("pvc-1").Status.Outdated, c)
		}
	}
	step(false, false)
	if !w.Host(third).Has(csitest.Ref(v)) || w.Host(holder).Partner(csitest.Ref(v)) != third {
		t.Errorf("replica there: %v, partner %s", w.Host(third).Has(csitest.Ref(v)), w.Host(holder).Partner(csitest.Ref(v)))
	}
	step(false, false) // they have not found each other yet
	w.Host(holder).Sync(csitest.Ref(v), 40)
	step(true, false)
	// Until the copy is complete it is no copy: the third node does not get the volume when the
	// holder dies.
	w.Taint(holder)
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	_, err = w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.FailedPrecondition, "has no current copy")
}

func TestCompleteCopyIsCurrentAndTheLostOneWiped(t *testing.T) {
	w := csitest.New(t)
	v, holder, lost, third := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	csitest.Must(t, err)
	w.Host(holder).Sync(csitest.Ref(v), 100)
	w.Host(holder).SetEpoch(csitest.Ref(v), v.Status.Epoch-1)
	if c, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch); err != nil || c.Done {
		t.Errorf("an earlier attachment's answer counted: %+v, %v", c, err)
	}
	w.Host(holder).SetEpoch(csitest.Ref(v), v.Status.Epoch+1)
	if c, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch); !errors.Is(err, authority.ErrRecordBehind) || c.Done {
		t.Errorf("a later attachment's answer counted: %+v, %v", c, err)
	}
	w.Host(holder).SetEpoch(csitest.Ref(v), v.Status.Epoch)
	c, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; !c.Done || len(s.Outdated) > 0 {
		t.Errorf("%+v, outdated %v", c, s.Outdated)
	}
	w.Host(lost).Restart(t)
	w.Poll()
	if w.Host(lost).Has(csitest.Ref(v)) {
		t.Error("the lost replica is still there")
	}
	// The holder dies, and the third node has everything.
	w.Host(holder).Stop()
	w.Taint(holder)
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	_, err = w.Publish("pvc-1", third)
	csitest.Must(t, err)
}

// The host of the lost copy has left the group, and is not polled with it any more.
func TestTheReplacedCopyOnAHostThatHasLeftTheGroupIsRemoved(t *testing.T) {
	w := csitest.New(t)
	v, holder, lost, third := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	group := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	group.Spec.Nodes = slices.DeleteFunc(group.Spec.Nodes, func(node string) bool { return node == lost })
	csitest.Must(t, w.API.Update(t.Context(), group))
	w.Poll()
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.Elsewhere))
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != lost {
		t.Errorf("stale %+v", s)
	}
	replacedCopyGoes(w, v, holder, lost)
}

// replacedCopyGoes fails unless the replica on the lost host goes when the new copy is current and that host is back.
func replacedCopyGoes(w *csitest.World, v *v1alpha1.CacheVolume, holder, lost string) {
	w.T.Helper()
	_, err := w.Locked.Copy(w.T.Context(), v.Name, v.Status.Epoch)
	csitest.Must(w.T, err)
	w.Host(holder).Sync(csitest.Ref(v), 100)
	c, err := w.Locked.Copy(w.T.Context(), v.Name, v.Status.Epoch)
	csitest.Must(w.T, err)
	w.Host(lost).Restart(w.T)
	w.Poll()
	if !c.Done || w.Host(lost).Has(csitest.Ref(v)) {
		w.T.Errorf("the lost replica is still there; %+v", c)
	}
}

// The volume is drained, so its record says that the truth is in Ceph. The lost copy has seen this
// attachment, and is dirty.
func TestTheReplacedCopyOfADrainedVolumeIsWiped(t *testing.T) {
	w := csitest.New(t)
	v, holder, lost, third := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	w.TakeEpoch(lost, "pvc-1")
	w.Host(lost).Change(csitest.Ref(v), func(s *escache.VolumeStatus) { *s.DirtyBytes = 4096 })
	v.Status.Authority, v.Status.WriteThrough = v1alpha1.AuthorityCeph, []v1alpha1.WriteThroughClaim{{
		Owner: "repair", Epoch: v.Status.Epoch, Since: metav1.Now(),
	}}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	replacedCopyGoes(w, v, holder, lost)
}

func TestReplicaIsOnlyReplacedWithProof(t *testing.T) {
	for name, spoil := range map[string]func(w *csitest.World, v *v1alpha1.CacheVolume, holder, lost string){
		"the lost one is not on record as outdated": func(
			_ *csitest.World, v *v1alpha1.CacheVolume, _, _ string,
		) {
			v.Status.Outdated = nil
		},
		"the holder is": func(_ *csitest.World, v *v1alpha1.CacheVolume, holder, lost string) {
			v.Status.Outdated = []string{holder, lost}
		},
		"detached meanwhile":  func(_ *csitest.World, v *v1alpha1.CacheVolume, _, _ string) { v.Status.AttachedNode = "" },
		"attached anew":       func(_ *csitest.World, v *v1alpha1.CacheVolume, _, _ string) { v.Status.Epoch++ },
		"no repair on record": func(_ *csitest.World, v *v1alpha1.CacheVolume, _, _ string) { v.Status.Repair = nil },
		"the host is back": func(w *csitest.World, _ *v1alpha1.CacheVolume, _, lost string) {
			w.Host(lost).Restart(w.T)
			for _, n := range []string{"n1", "n2", "n3"} {
				if n != lost && w.Volume("pvc-1").Status.AttachedNode != n {
					w.Host(n).Stop()
				}
			}
			w.Poll()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := csitest.New(t)
			v, holder, lost, third := w.Widow("pvc-1")
			epoch := v.Status.Epoch
			spoil(w, v, holder, lost)
			csitest.Must(t, w.API.Status().Update(t.Context(), v))
			err := w.Locked.Substitute(t.Context(), "pvc-1", epoch, lost, third, volumes.ElsewhereIfAway)
			if !errors.Is(err, volumes.ErrRefused) && volumes.Code(err) != codes.FailedPrecondition {
				t.Errorf("replaced by %s: %v", third, err)
			}
			if now := w.Volume("pvc-1"); !now.Spec.HasReplica(lost) {
				t.Errorf("replicas %v", now.Spec.Replicas)
			}
		})
	}
}

// TestTheOnlyCopyIsNotReplaced: the record was set back within the attachment, to where the other copy was
// outdated. Since then that one was filled, and the holder's disk has failed: it lives from the copy that
// the record gives away. Repairs raise no epoch, so the host cannot know it by that.
func TestTheOnlyCopyIsNotReplaced(t *testing.T) {
	w := csitest.New(t)
	v, holder, lost, _ := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	w.TakeEpoch(lost, "pvc-1")
	w.Host(lost).Restart(t)
	w.Poll()
	w.Host(lost).Change(csitest.Ref(v), func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{
			Name: holder, ConnectionState: escache.LinkConnected, DiskState: escache.DiskDiskless, Role: escache.RolePrimary,
		}}
	})
	err := w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, lost, volumes.Same)
	csitest.Wants(t, err, codes.FailedPrecondition, "lives from this copy")
	if !w.Host(lost).Has(csitest.Ref(v)) {
		t.Error("the only copy is gone")
	}
}

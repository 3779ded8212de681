package csi_test

import (
	"context"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

func TestPublishLaysReplicasAndMovesTheTruth(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	node := v.Spec.Replicas[0]
	out, err := w.publish("pvc-1", node)
	must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "1" || len(out) != 1 {
		t.Errorf("publish context %v", out)
	}
	v = w.volume("pvc-1")
	if v.Status.AttachedNode != node || v.Status.Authority != v1alpha1.AuthorityCache || v.Status.ImageID == "" {
		t.Errorf("status %+v", v.Status)
	}
	if on := w.fleet.On(ref(v)); len(on) != 2 || !on[v.Spec.Replicas[0]] || !on[v.Spec.Replicas[1]] {
		t.Errorf("replicas on %v", on)
	}
	again, err := w.publish("pvc-1", node)
	must(t, err)
	if again[v1alpha1.PublishContextEpoch] != "1" {
		t.Errorf("the repeated call made epoch %s", again[v1alpha1.PublishContextEpoch])
	}
}

func TestPublishRefuses(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	_, err := w.publish("absent", "n1")
	wants(t, err, codes.NotFound)
	_, err = w.publish("pvc-1", "n77")
	wants(t, err, codes.NotFound, "n77")
	_, err = w.publish("pvc-1", "n9")
	wants(t, err, codes.FailedPrecondition, "n9", "g1")
	_, err = w.publish("pvc-1", v.Spec.Replicas[0])
	must(t, err)
	_, err = w.publish("pvc-1", v.Spec.Replicas[1])
	wants(t, err, codes.FailedPrecondition, "attached to node "+v.Spec.Replicas[0])
}

func TestOrderlyMoveToAnyNodeOfTheGroup(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	for i, node := range []string{v.Spec.Replicas[1], other(v), v.Spec.Replicas[0]} {
		out, err := w.publish("pvc-1", node)
		must(t, err)
		if out[v1alpha1.PublishContextEpoch] != []string{"1", "2", "3"}[i] {
			t.Errorf("epoch %s", out[v1alpha1.PublishContextEpoch])
		}
		now := w.volume("pvc-1")
		if !now.Spec.HasReplica(node) {
			t.Errorf("attached to %s, replicas on %v", node, now.Spec.Replicas)
		}
		if on := w.fleet.On(ref(now)); len(on) != 2 || !on[now.Spec.Replicas[0]] || !on[now.Spec.Replicas[1]] {
			t.Errorf("record says %v, hosts %v", now.Spec.Replicas, on)
		}
		w.host(node).Connect(ref(now), "10.0.0.1:0/1")
		wants(t, w.unpublish("pvc-1", node), codes.FailedPrecondition, "still connected")
		w.host(node).Release(ref(now))
		must(t, w.unpublish("pvc-1", node))
		must(t, w.unpublish("pvc-1", node))
		if now = w.volume("pvc-1"); now.Status.AttachedNode != "" || now.Status.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("after unpublish %+v", now.Status)
		}
	}
	must(t, w.delete("pvc-1"))
	w.empty()
}

func TestDirtyVolumeIsWrittenBackBeforeItIsDeleted(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Connect(ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.host(n).Write(ref(v), 4096)
	}
	wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "attached")
	w.host(holder).Release(ref(v))
	must(t, w.unpublish("pvc-1", holder))
	if s := w.volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || s.AttachedNode != "" {
		t.Errorf("status %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		w.host(n).Stop()
	}
	wants(t, w.delete("pvc-1"), codes.Unavailable, holder+" does not answer", partner+" does not answer")
	if s := w.volume("pvc-1").Status; s.Phase != v1alpha1.VolumeReady || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		w.host(n).Restart(t)
	}
	must(t, w.delete("pvc-1"))
	w.empty()
}

func TestDeadNodeIsFencedAndNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	dead, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", dead)
	must(t, err)
	w.host(dead).Connect(ref(v), "10.0.0.1:0/1")
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	w.images.open[image] = []string{"10.0.0.1:0/1", "10.0.0.1:0/2"}
	w.host(dead).Stop()
	wants(t, w.unpublish("pvc-1", dead), codes.Unavailable, dead, "out-of-service")
	if len(w.images.fenced) > 0 {
		t.Fatalf("a node that lives was fenced: %v", w.images.fenced)
	}
	w.taint(dead)
	w.images.fail = volumes.ErrUnavailable
	wants(t, w.unpublish("pvc-1", dead), codes.Unavailable)
	if s := w.volume("pvc-1").Status; s.AttachedNode != dead {
		t.Fatalf("detached without a fence: %+v", s)
	}
	w.images.fail = nil
	must(t, w.unpublish("pvc-1", dead))
	s := w.volume("pvc-1").Status
	if s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || len(s.Fenced) != 3 || s.Fenced[2].Node != dead {
		t.Errorf("status %+v", s) // nobody knows whose the two clients are, so the node is on record without one
	}
	slices.Sort(w.images.fenced)
	if !slices.Equal(slices.Compact(w.images.fenced), []string{"10.0.0.1:0/1", "10.0.0.1:0/2"}) {
		t.Errorf("fenced %v", w.images.fenced)
	}
	delete(w.images.open, image)
	out, err := w.publish("pvc-1", partner)
	must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "2" {
		t.Errorf("epoch %v", out)
	}
}

func TestNodeThatIsCutOffIsFencedToo(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	node := v.Spec.Replicas[0]
	_, err := w.publish("pvc-1", node)
	must(t, err)
	w.host(node).Connect(ref(v), "10.0.0.1:0/1")
	w.taint(node)
	v = w.volume("pvc-1")
	v.Status.ClientAddress = "10.0.0.1:0/1"
	must(t, w.api.Status().Update(context.Background(), v))
	must(t, w.unpublish("pvc-1", node))
	if !slices.Equal(w.images.fenced, []string{"10.0.0.1:0/1"}) {
		t.Errorf("fenced %v", w.images.fenced)
	}
}

func TestCleanVolumeGoesOnWithoutADeadPartner(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	node, dead := v.Spec.Replicas[0], v.Spec.Replicas[1]
	w.host(dead).Stop()
	w.poll()
	_, err := w.publish("pvc-1", node)
	must(t, err)
	now := w.volume("pvc-1")
	if now.Spec.HasReplica(dead) || !now.Spec.HasReplica(node) {
		t.Errorf("replicas on %v with %s dead", now.Spec.Replicas, dead)
	}
}

func TestWithoutASecondHostTheCallerHasToTryAgain(t *testing.T) {
	for name, choose := range map[string]func(*v1alpha1.CacheVolume) string{
		"on the node of a replica":      func(v *v1alpha1.CacheVolume) string { return v.Spec.Replicas[0] },
		"on the node that has none yet": other,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.create("pvc-1")
			node := choose(v)
			for _, n := range []string{"n1", "n2", "n3"} {
				if n != node {
					w.host(n).Stop()
				}
			}
			w.poll()
			if _, err := w.publish("pvc-1", node); volumes.Code(err) != codes.Unavailable {
				t.Errorf("got %s: %v", volumes.Code(err), err)
			}
		})
	}
}

func TestReplicaOfADeletedVolumeIsRemovedWhenItsHostIsBack(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	node, dead := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish("pvc-1", node)
	must(t, err)
	must(t, w.unpublish("pvc-1", node))
	w.host(dead).Stop()
	w.poll()
	must(t, w.delete("pvc-1"))
	group := &v1alpha1.NodeGroup{}
	must(t, w.api.Get(context.Background(), client.ObjectKey{Name: "g1"}, group))
	if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != dead || s[0].Volume != "pvc-1" {
		t.Fatalf("stale replicas %+v", s)
	}
	w.restart()
	if next := w.create("pvc-2"); next.Spec.Port == v.Spec.Port {
		t.Errorf("port %d is still in use on %s", v.Spec.Port, dead)
	}
	w.host(dead).Restart(t)
	w.poll()
	must(t, w.delete("pvc-2"))
	must(t, w.api.Get(context.Background(), client.ObjectKey{Name: "g1"}, group))
	if len(group.Status.StaleReplicas) > 0 {
		t.Errorf("left: %+v", group.Status.StaleReplicas)
	}
	w.poll()
	w.empty()
}

func TestDeleteIsRefusedWhileSomebodyHasTheImageOpen(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	w.images.open[image] = []string{"10.0.0.1:0/1"}
	wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "10.0.0.1:0/1")
	delete(w.images.open, image)
	must(t, w.delete("pvc-1"))
	must(t, w.delete("pvc-1"))
	w.empty()
}

func TestExpandGrowsRecordAndImage(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	expand := func(bytes, limit int64) (*csi.ControllerExpandVolumeResponse, error) {
		return w.service.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: bytes, LimitBytes: limit},
		})
	}
	for range 2 {
		out, err := expand(2*gib, 0)
		must(t, err)
		if out.GetCapacityBytes() != 2*gib || !out.GetNodeExpansionRequired() {
			t.Errorf("got %v", out)
		}
	}
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	if w.images.images[image] != 2*gib || w.volume("pvc-1").Spec.SizeBytes != 2*gib {
		t.Errorf("image has %d, record %d", w.images.images[image], w.volume("pvc-1").Spec.SizeBytes)
	}
	w.images.fail = volumes.ErrRefused
	_, err := expand(3*gib, 0)
	wants(t, err, codes.FailedPrecondition)
	if size := w.volume("pvc-1").Spec.SizeBytes; size != 2*gib {
		t.Errorf("%d bytes are on record, and the image has not grown", size)
	}
	w.images.fail = nil
	_, err = expand(gib, gib)
	wants(t, err, codes.OutOfRange, "cannot shrink")
}

// TestExpandRecordsWhatTheImageHas: the image grew, csi-controller was killed before it recorded the
// size, and then less was asked for; or an administrator has grown it.
func TestExpandRecordsWhatTheImageHas(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	w.images.images[volumes.ImageOf(v)] = 3 * gib
	out, err := w.service.ControllerExpandVolume(context.Background(), &csi.ControllerExpandVolumeRequest{
		VolumeId: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gib},
	})
	must(t, err)
	if size := w.volume("pvc-1").Spec.SizeBytes; size != 3*gib || out.GetCapacityBytes() != size {
		t.Errorf("the image has %d bytes, on record are %d, the answer is %d", int64(3*gib), size, out.GetCapacityBytes())
	}
}

// taint marks a node as out of service, as an operator does.
func (w *world) taint(name string) {
	w.t.Helper()
	n := &corev1.Node{}
	must(w.t, w.api.Get(context.Background(), client.ObjectKey{Name: name}, n))
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}}
	must(w.t, w.api.Update(context.Background(), n))
}

func TestDrainedVolumeGoesToAnyNodeAndIsLeftAloneBefore(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	holder, third := v.Spec.Replicas[0], other(v)
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	w.host(holder).Stage(ref(v), "10.0.0.1:0/1", 1, escache.ModeWritethrough)
	v = w.volume("pvc-1")
	v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, []string{v.Spec.Replicas[1]}
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "somebody", Epoch: 1}}
	must(t, w.api.Status().Update(t.Context(), v))
	out, err := w.publish("pvc-1", holder)
	must(t, err)
	if now := w.volume("pvc-1"); out[v1alpha1.PublishContextEpoch] != "1" || now.ResourceVersion != v.ResourceVersion {
		t.Errorf("the repeated call changed the record: %+v", now.Status)
	}
	// The host dies: nothing of its cache is missed, so the third node can have the volume at once.
	w.host(holder).Stop()
	n := &corev1.Node{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: holder}, n))
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	must(t, w.api.Update(t.Context(), n))
	w.poll()
	must(t, w.unpublish("pvc-1", holder))
	_, err = w.publish("pvc-1", third)
	must(t, err)
	if now := w.volume("pvc-1"); now.Status.AttachedNode != third || len(now.Status.WriteThrough) > 0 || !now.Spec.HasReplica(third) {
		t.Errorf("record %+v %+v", now.Spec, now.Status)
	}
}

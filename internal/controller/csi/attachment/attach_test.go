package attachment_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestPublishLaysReplicasAndMovesTheTruth(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	node := v.Spec.Replicas[0]
	out, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "1" || len(out) != 1 {
		t.Errorf("publish context %v", out)
	}
	v = w.Volume("pvc-1")
	if v.Status.AttachedNode != node || v.Status.Authority != v1alpha1.AuthorityCache || v.Status.ImageID == "" {
		t.Errorf("status %+v", v.Status)
	}
	if on := w.Fleet.On(csitest.Ref(v)); len(on) != 2 || !on[v.Spec.Replicas[0]] || !on[v.Spec.Replicas[1]] {
		t.Errorf("replicas on %v", on)
	}
	again, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if again[v1alpha1.PublishContextEpoch] != "1" {
		t.Errorf("the repeated call made epoch %s", again[v1alpha1.PublishContextEpoch])
	}
}

func TestPublishRefuses(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	_, err := w.Publish("absent", "n1")
	csitest.Wants(t, err, codes.NotFound)
	_, err = w.Publish("pvc-1", "n77")
	csitest.Wants(t, err, codes.NotFound, "n77")
	_, err = w.Publish("pvc-1", "n9")
	csitest.Wants(t, err, codes.FailedPrecondition, "n9", "g1")
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	_, err = w.Publish("pvc-1", v.Spec.Replicas[1])
	csitest.Wants(t, err, codes.FailedPrecondition, "attached to node "+v.Spec.Replicas[0])
}

func TestOrderlyMoveToAnyNodeOfTheGroup(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	for i, node := range []string{v.Spec.Replicas[1], csitest.Other(v), v.Spec.Replicas[0]} {
		out, err := w.Publish("pvc-1", node)
		csitest.Must(t, err)
		if out[v1alpha1.PublishContextEpoch] != []string{"1", "2", "3"}[i] {
			t.Errorf("epoch %s", out[v1alpha1.PublishContextEpoch])
		}
		now := w.Volume("pvc-1")
		if !now.Spec.HasReplica(node) {
			t.Errorf("attached to %s, replicas on %v", node, now.Spec.Replicas)
		}
		if on := w.Fleet.On(csitest.Ref(now)); len(on) != 2 || !on[now.Spec.Replicas[0]] || !on[now.Spec.Replicas[1]] {
			t.Errorf("record says %v, hosts %v", now.Spec.Replicas, on)
		}
		w.Host(node).Connect(csitest.Ref(now), "10.0.0.1:0/1")
		csitest.Wants(t, w.Unpublish("pvc-1", node), codes.FailedPrecondition, "still connected")
		w.Host(node).Release(csitest.Ref(now))
		csitest.Must(t, w.Unpublish("pvc-1", node))
		csitest.Must(t, w.Unpublish("pvc-1", node))
		if now = w.Volume("pvc-1"); now.Status.AttachedNode != "" || now.Status.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("after unpublish %+v", now.Status)
		}
	}
	csitest.Must(t, w.Delete("pvc-1"))
	w.Empty()
}

func TestDeadNodeIsFencedAndNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	dead, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", dead)
	csitest.Must(t, err)
	w.Host(dead).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	w.Images.Open[image] = []string{"10.0.0.1:0/1", "10.0.0.1:0/2"}
	w.Host(dead).Stop()
	csitest.Wants(t, w.Unpublish("pvc-1", dead), codes.Unavailable, dead, "out-of-service")
	if len(w.Images.Fenced) > 0 {
		t.Fatalf("a node that lives was fenced: %v", w.Images.Fenced)
	}
	w.Taint(dead)
	w.Images.Fail = volumes.ErrUnavailable
	csitest.Wants(t, w.Unpublish("pvc-1", dead), codes.Unavailable)
	if s := w.Volume("pvc-1").Status; s.AttachedNode != dead {
		t.Fatalf("detached without a fence: %+v", s)
	}
	w.Images.Fail = nil
	csitest.Must(t, w.Unpublish("pvc-1", dead))
	s := w.Volume("pvc-1").Status
	if s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || len(s.Fenced) != 3 || s.Fenced[2].Node != dead {
		t.Errorf("status %+v", s) // nobody knows whose the two clients are, so the node is on record without one
	}
	slices.Sort(w.Images.Fenced)
	if !slices.Equal(slices.Compact(w.Images.Fenced), []string{"10.0.0.1:0/1", "10.0.0.1:0/2"}) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}
	delete(w.Images.Open, image)
	out, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "2" {
		t.Errorf("epoch %v", out)
	}
}

func TestNodeThatIsCutOffIsFencedToo(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	node := v.Spec.Replicas[0]
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	w.Host(node).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	w.Taint(node)
	v = w.Volume("pvc-1")
	v.Status.ClientAddress = "10.0.0.1:0/1"
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	csitest.Must(t, w.Unpublish("pvc-1", node))
	if !slices.Equal(w.Images.Fenced, []string{"10.0.0.1:0/1"}) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}
}

func TestCleanVolumeGoesOnWithoutADeadPartner(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	node, dead := v.Spec.Replicas[0], v.Spec.Replicas[1]
	w.Host(dead).Stop()
	w.Poll()
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	now := w.Volume("pvc-1")
	if now.Spec.HasReplica(dead) || !now.Spec.HasReplica(node) {
		t.Errorf("replicas on %v with %s dead", now.Spec.Replicas, dead)
	}
}

func TestWithoutASecondHostTheCallerHasToTryAgain(t *testing.T) {
	for name, choose := range map[string]func(*v1alpha1.CacheVolume) string{
		"on the node of a replica":      func(v *v1alpha1.CacheVolume) string { return v.Spec.Replicas[0] },
		"on the node that has none yet": csitest.Other,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.Create("pvc-1")
			node := choose(v)
			for _, n := range []string{"n1", "n2", "n3"} {
				if n != node {
					w.Host(n).Stop()
				}
			}
			w.Poll()
			if _, err := w.Publish("pvc-1", node); volumes.Code(err) != codes.Unavailable {
				t.Errorf("got %s: %v", volumes.Code(err), err)
			}
		})
	}
}

func TestDrainedVolumeGoesToAnyNodeAndIsLeftAloneBefore(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, third := v.Spec.Replicas[0], csitest.Other(v)
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Stage(csitest.Ref(v), "10.0.0.1:0/1", 1, escache.ModeWritethrough)
	v = w.Volume("pvc-1")
	v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, []string{v.Spec.Replicas[1]}
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: "somebody", Epoch: 1}}
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	out, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	if now := w.Volume("pvc-1"); out[v1alpha1.PublishContextEpoch] != "1" || now.ResourceVersion != v.ResourceVersion {
		t.Errorf("the repeated call changed the record: %+v", now.Status)
	}
	// The host dies: nothing of its cache is missed, so the third node can have the volume at once.
	w.Host(holder).Stop()
	n := &corev1.Node{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: holder}, n))
	n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	csitest.Must(t, w.API.Update(t.Context(), n))
	w.Poll()
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	_, err = w.Publish("pvc-1", third)
	csitest.Must(t, err)
	if now := w.Volume("pvc-1"); now.Status.AttachedNode != third || len(now.Status.WriteThrough) > 0 || !now.Spec.HasReplica(third) {
		t.Errorf("record %+v %+v", now.Spec, now.Status)
	}
}

// TestANodeThatHasNotUnstagedIsAskedTo: a kubelet that was restarted meanwhile does not know of the volume any more, so nobody else does.
func TestANodeThatHasNotUnstagedIsAskedTo(t *testing.T) {
	w := newWorld(t)
	v, node := w.Connected("pvc-1")
	for range 2 {
		csitest.Wants(t, w.Unpublish("pvc-1", node), codes.FailedPrecondition, "unstaged there first")
		if now := w.Volume("pvc-1"); !authority.MustUnstage(now, node) || now.Status.AttachedNode != node {
			t.Fatalf("status %+v", now.Status)
		}
	}
	asked := w.Volume("pvc-1").ResourceVersion
	csitest.Wants(t, w.Unpublish("pvc-1", node), codes.FailedPrecondition)
	if now := w.Volume("pvc-1").ResourceVersion; now != asked {
		t.Errorf("the record is written again: version %s, and %s before", now, asked)
	}

	// Kubernetes wants it there again, and then not.
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if now := w.Volume("pvc-1"); authority.MustUnstage(now, node) {
		t.Errorf("status %+v", now.Status)
	}
	csitest.Wants(t, w.Unpublish("pvc-1", node), codes.FailedPrecondition)
	w.Host(node).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", node))
	_, err = w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.UnstageEpoch != 0 || s.AttachedNode != node {
		t.Errorf("status %+v", s)
	}
}

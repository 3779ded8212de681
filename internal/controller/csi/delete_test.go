package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestDirtyVolumeIsWrittenBackBeforeItIsDeleted(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Connect(csitest.Ref(v), "10.0.0.1:0/1")
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), 4096)
	}
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "attached")
	w.Host(holder).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache || s.AttachedNode != "" {
		t.Errorf("status %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		w.Host(n).Stop()
	}
	csitest.Wants(t, w.Delete("pvc-1"), codes.Unavailable, holder+" does not answer", partner+" does not answer")
	if s := w.Volume("pvc-1").Status; s.Phase != v1alpha1.VolumeReady || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
	for _, n := range v.Spec.Replicas {
		w.Host(n).Restart(t)
	}
	csitest.Must(t, w.Delete("pvc-1"))
	w.Empty()
}

func TestReplicaOfADeletedVolumeIsRemovedWhenItsHostIsBack(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	node, dead := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	csitest.Must(t, w.Unpublish("pvc-1", node))
	w.Host(dead).Stop()
	w.Poll()
	csitest.Must(t, w.Delete("pvc-1"))
	group := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(context.Background(), client.ObjectKey{Name: "g1"}, group))
	if s := group.Status.StaleReplicas; len(s) != 1 || s[0].Node != dead || s[0].Volume != "pvc-1" {
		t.Fatalf("stale replicas %+v", s)
	}
	w.Restart()
	if next := w.Create("pvc-2"); next.Spec.Port == v.Spec.Port {
		t.Errorf("port %d is still in use on %s", v.Spec.Port, dead)
	}
	w.Host(dead).Restart(t)
	w.Poll()
	csitest.Must(t, w.Delete("pvc-2"))
	csitest.Must(t, w.API.Get(context.Background(), client.ObjectKey{Name: "g1"}, group))
	if len(group.Status.StaleReplicas) > 0 {
		t.Errorf("left: %+v", group.Status.StaleReplicas)
	}
	w.Poll()
	w.Empty()
}

func TestDeleteIsRefusedWhileSomebodyHasTheImageOpen(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	w.Images.Open[image] = []string{"10.0.0.1:0/1"}
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "10.0.0.1:0/1")
	delete(w.Images.Open, image)
	csitest.Must(t, w.Delete("pvc-1"))
	csitest.Must(t, w.Delete("pvc-1"))
	w.Empty()
}

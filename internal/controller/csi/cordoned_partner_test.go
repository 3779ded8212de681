package csi_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// cordon keeps new replicas off hosts of the group.
func (w *world) cordon(nodes ...string) {
	w.t.Helper()
	g := &v1alpha1.NodeGroup{}
	must(w.t, w.api.Get(w.t.Context(), client.ObjectKey{Name: "g1"}, g))
	g.Spec.CordonedNodes = nodes
	must(w.t, w.api.Update(w.t.Context(), g))
	w.poll()
}

// A pod is drained off a host that is evacuated, in a group of three whose third host is down.
func TestACordonedPartnerThatAnswersIsKeptIfNoOtherHostCanStandIn(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.usedBefore("pvc-1")
	third := other(v)
	w.cordon(first)
	w.host(third).Stop()
	w.poll()
	_, err := w.publish("pvc-1", second)
	must(t, err)
	now := w.volume("pvc-1")
	if !slices.Equal(now.Spec.Replicas, v.Spec.Replicas) || now.Spec.LinkGeneration != v.Spec.LinkGeneration || now.Status.AttachedNode != second {
		t.Errorf("spec %+v, status %+v", now.Spec, now.Status)
	}
	if s := now.Status; s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("status %+v", s)
	}
}

func TestACordonedPartnerIsLeftIfAnotherHostCanStandIn(t *testing.T) {
	w := newWorld(t)
	v, first, second := w.usedBefore("pvc-1")
	w.cordon(first)
	_, err := w.publish("pvc-1", second)
	must(t, err)
	if on := w.volume("pvc-1").Spec.Replicas; !slices.Contains(on, other(v)) || slices.Contains(on, first) {
		t.Errorf("replicas on %v", on)
	}
}

// What a cordoned host does not have any more, or what is old there, would have to be created there again.
func TestACordonedHostGetsNoReplica(t *testing.T) {
	for what, change := range map[string]func(w *world, first string){
		"it does not answer":  func(w *world, first string) { w.host(first).Stop() },
		"it has lost its own": func(w *world, first string) { w.host(first).Forget() },
		"its own is old": func(w *world, first string) {
			v := w.volume("pvc-1")
			v.Status.Outdated = []string{first}
			must(w.t, w.api.Status().Update(w.t.Context(), v))
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			v, first, second := w.usedBefore("pvc-1")
			change(w, first)
			w.cordon(first)
			w.host(other(v)).Stop()
			w.poll()
			_, err := w.publish("pvc-1", second)
			wants(t, err, codes.Unavailable, "no other host can stand in")
		})
	}
}

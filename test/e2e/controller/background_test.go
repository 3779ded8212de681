//go:build e2e

package controller

import (
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// chore is what the leader does by itself, and not in a call.
type chore struct {
	point string
	// cause leads to it, with a volume that was just created.
	cause func(t *testing.T, w *world, d *driver)
	// check looks at the world after another replica leads. The volume is deleted after it.
	check func(t *testing.T, w *world)
}

func background() []chore {
	return []chore{
		{
			point: "nodegroup/released",
			cause: func(t *testing.T, _ *world, d *driver) {
				until(t, func() error { return d.delete(t.Context(), crashed) })
			},
			check: func(t *testing.T, w *world) { w.groupsFree(t) },
		},
		{
			point: "nodegroup/restored",
			cause: func(t *testing.T, w *world, _ *driver) {
				w.kubectl(t, "", "patch", "nodegroup", w.one(t).Spec.Group, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
			},
			check: func(t *testing.T, w *world) {
				eventually(t, time.Minute, func() bool {
					return controllerutil.ContainsFinalizer(w.group(t, w.one(t).Spec.Group), v1alpha1.GroupFinalizer)
				}, func() string { return "the group of a volume has no finalizer" })
			},
		},
	}
}

// byItself reports whether the leader passes a crash point outside of calls. That may happen at any
// time, also while a call is traced.
func byItself(point string) bool {
	return slices.ContainsFunc(background(), func(c chore) bool { return c.point == point })
}

func (w *world) group(t *testing.T, name string) *v1alpha1.NodeGroup {
	t.Helper()
	g := &v1alpha1.NodeGroup{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: name}, g))
	return g
}

func (c chore) die(t *testing.T, l *line) {
	first, w := l.leader(t), l.world
	second := l.next()
	l.explain(t, first, second)
	w.groupsFree(t)
	until(t, func() error { return first.create(t.Context(), crashed) })
	first.dieAt(t, c.point)
	c.cause(t, w, first)
	if !waitEnded(first) {
		t.Fatalf("the leader did not die at %s", c.point)
	}
	first.bury()
	l.leading = leader(t, time.Minute, second)
	c.check(t, w)
	until(t, func() error { return second.delete(t.Context(), crashed) })
	w.empty(t)
}

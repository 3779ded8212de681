//go:build e2e

package controller

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// writeBackScenes are about a volume that csi-controller has written back for nobody.
func writeBackScenes() []scene {
	var holder string
	return []scene{{
		name: "ControllerUnpublishVolume of a pod that was gone before it had staged what is being written back", points: []string{"unpublish/given_back"},
		prepare: func(t *testing.T, w *world, d *driver) {
			leaveDirty(t, w, d)
			w.flushAtMost(1)
			eventually(t, time.Minute, func() bool {
				if err := d.publish(t.Context(), crashed, third(w.one(t))); status.Code(err) != codes.Aborted {
					t.Errorf("the node without a copy gets it: %v", err)
				}
				return w.one(t).Status.FlushAttached() // another of the leader's tasks may have written the record first
			}, func() string { return fmt.Sprintf("nobody writes it back: %+v", w.one(t).Status) })
			holder = w.one(t).Status.AttachedNode
			until(t, func() error { return d.publish(t.Context(), crashed, holder) })
		},
		call: func(t *testing.T, w *world, d *driver) error {
			w.alive(t, holder)
			return d.unpublish(t.Context(), crashed, holder)
		},
		check: func(t *testing.T, w *world) {
			if s := w.one(t).Status; !s.FlushAttached() || s.AttachedNode != holder {
				t.Errorf("nobody writes it back: %+v", s)
			}
		},
		clean: func(t *testing.T, w *world, d *driver) {
			w.flushAtMost(0)
			until(t, func() error { return d.delete(t.Context(), crashed) })
		},
	}}
}

// alive has Kubernetes see a sign of life of a node. The hosts are played and have no kubelet, so Kubernetes gives them up
// a few minutes after they were made.
func (w *world) alive(t *testing.T, node string) {
	t.Helper()
	must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n := &corev1.Node{}
		if err := w.api.Get(t.Context(), client.ObjectKey{Name: node}, n); err != nil {
			return err
		}
		now := metav1.Now()
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: now, LastTransitionTime: now},
		}
		return w.api.Status().Update(t.Context(), n)
	}))
}

// flushAtMost limits what a host writes back in a call, in bytes. 0: no limit.
func (w *world) flushAtMost(bytes int64) {
	for _, host := range w.fleet.Hosts {
		host.FlushAtMost(bytes)
	}
}

package attachment_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/test/csitest"
)

func (w *world) node(name string) *corev1.Node {
	w.T.Helper()
	n := &corev1.Node{}
	csitest.Must(w.T, w.API.Get(w.T.Context(), client.ObjectKey{Name: name}, n))
	return n
}

func (w *world) deleteNode(name string) { csitest.Must(w.T, w.API.Delete(w.T.Context(), w.node(name))) }

// TestATakeOverGoesOnWithoutThePartnersAddress: the node's own copy is the only one that is left. Its replica keeps
// the partner that it has, and is connected as it is.
func TestATakeOverGoesOnWithoutThePartnersAddress(t *testing.T) {
	for name, lose := range map[string]func(w *world, node string){
		"its Node is deleted": (*world).deleteNode,
		"its Node has no InternalIP": func(w *world, node string) {
			n := w.node(node)
			n.Status.Addresses = nil
			csitest.Must(w.T, w.API.Status().Update(w.T.Context(), n))
		},
		"its annotation is no IP address": func(w *world, node string) {
			n := w.node(node)
			n.Annotations = map[string]string{v1alpha1.AnnotationReplicationAddress: "host.example"}
			csitest.Must(w.T, w.API.Update(w.T.Context(), n))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, dead, survivor, _ := w.PowerLoss("pvc-1")
			v.Status.Hosts = nil // of a version that does not record the machines
			csitest.Must(t, w.API.Status().Update(t.Context(), v))
			lose(w, dead)
			w.Poll()
			for range 2 { // as after a timeout
				_, err := w.Publish("pvc-1", survivor)
				csitest.Must(t, err)
			}
			now := w.Volume("pvc-1")
			if s := now.Status; s.AttachedNode != survivor || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
				t.Errorf("status %+v", s)
			}
			if id := w.Host(survivor).Status(csitest.Ref(v)).HostID; now.Status.HostID(survivor) != id {
				t.Errorf("on record are the machines %+v, not %s", now.Status.Hosts, id)
			}
			csitest.Must(t, w.Hosts().DevConnect(t.Context(), survivor, now.Status.HostID(survivor), cachevolume.ConnectRequest(now)))
			if epoch, connected := w.Host(survivor).Connected(csitest.Ref(v)); !connected || epoch != now.Status.Epoch {
				t.Errorf("connected %v with epoch %d", connected, epoch)
			}
		})
	}
}

// TestWithoutThePartnersAddressTheNodeMustHaveItsCopy: the repeated call comes when the node has lost it.
func TestWithoutThePartnersAddressTheNodeMustHaveItsCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(w *world, node string)
		says string
	}{
		"its host does not answer": {func(w *world, node string) { w.Host(node).Stop() }, "unreachable"},
		"its disks are empty":      {func(w *world, node string) { w.emptied(node) }, "no replica any more"},
		"it is another machine":    {func(w *world, node string) { w.Host(node).Replace() }, "another machine answers in its place"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			_, dead, survivor, _ := w.PowerLoss("pvc-1")
			w.deleteNode(dead)
			w.Poll()
			_, err := w.Publish("pvc-1", survivor)
			csitest.Must(t, err)
			tc.lose(w, survivor)
			_, err = w.Publish("pvc-1", survivor)
			csitest.Wants(t, err, codes.Unavailable, survivor, tc.says)
		})
	}
}

package csi_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func (w *world) group() (*v1alpha1.NodeGroup, error) {
	g := &v1alpha1.NodeGroup{}
	return g, w.api.Get(context.Background(), client.ObjectKey{Name: "g1"}, g)
}

// Between the record of the first volume and the next poll somebody may delete the group.
func TestAGroupIsKeptBeforeTheRecordOfItsFirstVolumeIsWritten(t *testing.T) {
	w := newWorld(t)
	early := errors.New("the record is written before the group is kept")
	below, ok := w.api.(client.WithWatch)
	if !ok {
		t.Fatal("the client cannot be wrapped")
	}
	w.cached = interceptor.NewClient(below, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if g, err := w.group(); err != nil || !slices.Contains(g.Finalizers, v1alpha1.GroupFinalizer) {
				return errors.Join(early, err)
			}
			return c.Create(ctx, o, opts...)
		},
	})
	w.restart()
	w.create("first")
	w.create("second")
}

func TestADeletedGroupServesItsVolumesAndTakesNoNewOnes(t *testing.T) {
	w := newWorld(t)
	id := w.create("v").Name
	g, err := w.group()
	must(t, err)
	must(t, w.api.Delete(t.Context(), g))
	w.poll()
	w.restart() // another leader finds it so
	_, err = w.publish(id, "n1")
	must(t, err)
	_, err = w.service.CreateVolume(t.Context(), createRequest("late"))
	wants(t, err, codes.ResourceExhausted)
	_, err = w.service.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "n1"})
	must(t, err)
	w.poll()
	if _, err = w.group(); err != nil {
		t.Fatal(err)
	}
	_, err = w.service.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	must(t, err)
	w.poll()
	if _, err = w.group(); !apierrors.IsNotFound(err) {
		t.Errorf("its last volume is gone, and the group: %v", err)
	}
}

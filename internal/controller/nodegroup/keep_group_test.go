package nodegroup_test

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
	"github.com/escache/escache-csi/test/csitest"
)

// Between the record of the first volume and the next poll somebody may delete the group.
func TestAGroupIsKeptBeforeTheRecordOfItsFirstVolumeIsWritten(t *testing.T) {
	w := csitest.New(t)
	early := errors.New("the record is written before the group is kept")
	below, ok := w.API.(client.WithWatch)
	if !ok {
		t.Fatal("the client cannot be wrapped")
	}
	w.Cached = interceptor.NewClient(below, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if g, err := w.Group(); err != nil || !slices.Contains(g.Finalizers, v1alpha1.GroupFinalizer) {
				return errors.Join(early, err)
			}
			return c.Create(ctx, o, opts...)
		},
	})
	w.Restart()
	w.Create("first")
	w.Create("second")
}

func TestADeletedGroupServesItsVolumesAndTakesNoNewOnes(t *testing.T) {
	w := csitest.New(t)
	id := w.Create("v").Name
	g, err := w.Group()
	csitest.Must(t, err)
	csitest.Must(t, w.API.Delete(t.Context(), g))
	w.Poll()
	w.Restart() // another leader finds it so
	_, err = w.Publish(id, "n1")
	csitest.Must(t, err)
	_, err = w.Service.CreateVolume(t.Context(), csitest.CreateRequest("late"))
	csitest.Wants(t, err, codes.ResourceExhausted)
	_, err = w.Service.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "n1"})
	csitest.Must(t, err)
	w.Poll()
	if _, err = w.Group(); err != nil {
		t.Fatal(err)
	}
	_, err = w.Service.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
	csitest.Must(t, err)
	w.Poll()
	if _, err = w.Group(); !apierrors.IsNotFound(err) {
		t.Errorf("its last volume is gone, and the group: %v", err)
	}
}

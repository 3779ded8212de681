package release_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// whileWrittenBack calls do once, when csi-controller has begun to write a volume back.
func (w *world) whileWrittenBack(do func()) {
	w.T.Helper()
	below, ok := w.API.(client.WithWatch)
	if !ok {
		w.T.Fatal("the client cannot be wrapped")
	}
	called := false
	w.Cached = interceptor.NewClient(below, interceptor.Funcs{
		SubResourceUpdate: func(
			ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			err := c.SubResource(sub).Update(ctx, o, opts...)
			if v, is := o.(*v1alpha1.CacheVolume); err == nil && is && v.Status.FlushAttached() && !called {
				called = true
				do()
			}
			return err
		},
	})
	w.Restart()
}

// TestAReleaseThatIsCalledOffWhileItWaitsIsNotCarriedOut: who calls it off is told that the volume stays.
func TestAReleaseThatIsCalledOffWhileItWaitsIsNotCarriedOut(t *testing.T) {
	w := newWorld(t)
	w.PowerLoss("pvc-1")
	w.AskRelease("pvc-1", true)
	w.whileWrittenBack(func() { w.AskRelease("pvc-1", false) })
	err := w.Locked.Release(t.Context(), "pvc-1")
	if w.Gone("pvc-1") || len(w.Images.Released) > 0 {
		t.Fatalf("it was released: %v", err)
	}
	if v := w.Volume("pvc-1"); v.Status.Phase != v1alpha1.VolumeReady {
		t.Errorf("phase %s: %v", v.Status.Phase, err)
	}
}

// TestAVolumeIsNotDeletedIfItsReleaseIsAskedForMeanwhile: a release keeps the image.
func TestAVolumeIsNotDeletedIfItsReleaseIsAskedForMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.PowerLoss("pvc-1")
	image := volumes.ImageOf(w.Volume("pvc-1"))
	w.whileWrittenBack(func() { w.AskRelease("pvc-1", true) })
	err := w.Delete("pvc-1")
	if _, there := w.Images.Sizes[image]; !there {
		t.Fatalf("the image is gone: %v", err)
	}
	csitest.Wants(t, err, codes.FailedPrecondition, "its image stays")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	if _, released := w.Images.Released[image]; !released || !w.Gone("pvc-1") {
		t.Error("it was not released")
	}
}

// TestAReleaseThatHasBegunIsFinished: kubectl edit does not know that there is no way back.
func TestAReleaseThatHasBegunIsFinished(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.UsedBefore("pvc-1")
	now := w.Volume("pvc-1")
	now.Status.Phase = v1alpha1.VolumeReleasing
	csitest.Must(t, w.API.Status().Update(t.Context(), now))
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "its image stays")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	if _, released := w.Images.Released[volumes.ImageOf(v)]; !released || !w.Gone("pvc-1") {
		t.Error("it stays as it is, and nobody can use or delete it")
	}
}

// TestAReplicaIsStaleAsOfItsLastAttachment: an older entry of the same replica is left from before. With
// its epoch the host would refuse to remove the replica for ever.
func TestAReplicaIsStaleAsOfItsLastAttachment(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.UsedBefore("pvc-1")
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	w.Host(partner).Stop()
	w.Poll()
	g, err := w.Group()
	csitest.Must(t, err)
	g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: partner, Volume: "pvc-1", Pool: v.Spec.Pool, Image: v.Spec.Image, Epoch: 1}}
	csitest.Must(t, w.API.Status().Update(t.Context(), g))
	csitest.Must(t, w.Delete("pvc-1"))
	if g, err = w.Group(); err != nil || len(g.Status.StaleReplicas) != 1 || g.Status.StaleReplicas[0].Epoch != 2 {
		t.Errorf("stale: %+v, %v", g.Status.StaleReplicas, err)
	}
}

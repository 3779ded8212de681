package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// whileWrittenBack calls do once, when csi-controller has begun to write a volume back.
func (w *world) whileWrittenBack(do func()) {
	w.t.Helper()
	below, ok := w.api.(client.WithWatch)
	if !ok {
		w.t.Fatal("the client cannot be wrapped")
	}
	called := false
	w.cached = interceptor.NewClient(below, interceptor.Funcs{
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
	w.restart()
}

// TestAReleaseThatIsCalledOffWhileItWaitsIsNotCarriedOut: who calls it off is told that the volume stays.
func TestAReleaseThatIsCalledOffWhileItWaitsIsNotCarriedOut(t *testing.T) {
	w := newWorld(t)
	w.powerLoss("pvc-1")
	w.askRelease("pvc-1", true)
	w.whileWrittenBack(func() { w.askRelease("pvc-1", false) })
	err := w.locked.Release(t.Context(), "pvc-1")
	if w.gone("pvc-1") || len(w.images.released) > 0 {
		t.Fatalf("it was released: %v", err)
	}
	if v := w.volume("pvc-1"); v.Status.Phase != v1alpha1.VolumeReady {
		t.Errorf("phase %s: %v", v.Status.Phase, err)
	}
}

// TestAVolumeIsNotDeletedIfItsReleaseIsAskedForMeanwhile: a release keeps the image.
func TestAVolumeIsNotDeletedIfItsReleaseIsAskedForMeanwhile(t *testing.T) {
	w := newWorld(t)
	w.powerLoss("pvc-1")
	image := volumes.ImageOf(w.volume("pvc-1"))
	w.whileWrittenBack(func() { w.askRelease("pvc-1", true) })
	err := w.delete("pvc-1")
	if _, there := w.images.images[image]; !there {
		t.Fatalf("the image is gone: %v", err)
	}
	wants(t, err, codes.FailedPrecondition, "its image stays")
	must(t, w.locked.Release(t.Context(), "pvc-1"))
	if _, released := w.images.released[image]; !released || !w.gone("pvc-1") {
		t.Error("it was not released")
	}
}

// TestAReleaseThatHasBegunIsFinished: kubectl edit does not know that there is no way back.
func TestAReleaseThatHasBegunIsFinished(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.usedBefore("pvc-1")
	now := w.volume("pvc-1")
	now.Status.Phase = v1alpha1.VolumeReleasing
	must(t, w.api.Status().Update(t.Context(), now))
	wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "its image stays")
	must(t, w.locked.Release(t.Context(), "pvc-1"))
	if _, released := w.images.released[volumes.ImageOf(v)]; !released || !w.gone("pvc-1") {
		t.Error("it stays as it is, and nobody can use or delete it")
	}
}

// TestAReplicaIsStaleAsOfItsLastAttachment: an older entry of the same replica is left from before. With
// its epoch the host would refuse to remove the replica for ever.
func TestAReplicaIsStaleAsOfItsLastAttachment(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.usedBefore("pvc-1")
	_, err := w.publish("pvc-1", holder)
	must(t, err)
	must(t, w.unpublish("pvc-1", holder))
	w.host(partner).Stop()
	w.poll()
	g, err := w.group()
	must(t, err)
	g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: partner, Volume: "pvc-1", Pool: v.Spec.Pool, Image: v.Spec.Image, Epoch: 1}}
	must(t, w.api.Status().Update(t.Context(), g))
	must(t, w.delete("pvc-1"))
	if g, err = w.group(); err != nil || len(g.Status.StaleReplicas) != 1 || g.Status.StaleReplicas[0].Epoch != 2 {
		t.Errorf("stale: %+v, %v", g.Status.StaleReplicas, err)
	}
}

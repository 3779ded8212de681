package csi_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

func (w *world) askRelease(id string, release bool) {
	w.t.Helper()
	v := w.volume(id)
	v.Spec.Release = release
	must(w.t, w.api.Update(context.Background(), v))
}

func (w *world) gone(id string) bool {
	return apierrors.IsNotFound(w.api.Get(context.Background(), client.ObjectKey{Name: id}, &v1alpha1.CacheVolume{}))
}

func TestAReleasedVolumeLeavesItsImageAndNothingElse(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.usedBefore("pvc-1")
	must(t, w.locked.Release(t.Context(), "pvc-1"))
	if w.gone("pvc-1") {
		t.Fatal("released, and nobody asked for it")
	}
	w.askRelease("pvc-1", true)
	_, err := w.publish("pvc-1", v.Spec.Replicas[0])
	wants(t, err, codes.FailedPrecondition, "being released", "--cancel")
	wants(t, w.delete("pvc-1"), codes.FailedPrecondition, "its image stays")
	must(t, w.locked.Release(t.Context(), "pvc-1"))
	if note := w.images.released[volumes.ImageOf(v)]; !w.gone("pvc-1") || w.fleet.Replicas() != 0 || note.Epoch != 1 {
		t.Errorf("record gone: %t, %d replicas, note %+v", w.gone("pvc-1"), w.fleet.Replicas(), note)
	}
	must(t, w.delete("pvc-1")) // external-provisioner may still ask for it
	if _, there := w.images.images[volumes.ImageOf(v)]; !there {
		t.Error("the image is gone")
	}
	wants(t, w.locked.Release(t.Context(), "pvc-1"), codes.NotFound)
}

func TestADirtyVolumeIsWrittenBackBeforeItIsReleased(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.powerLoss("pvc-1")
	w.askRelease("pvc-1", true)
	must(t, w.locked.Release(t.Context(), "pvc-1"))
	if !w.gone("pvc-1") {
		t.Error("its record is still there")
	}
	if status, _ := w.host(survivor).Volume(ref(v)); status.State == "connected" || w.images.released[volumes.ImageOf(v)].Epoch < 2 {
		t.Errorf("not written back by %s: %+v", survivor, status)
	}
	group := &v1alpha1.NodeGroup{}
	must(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if stale := group.Status.StaleReplicas; len(stale) != 1 || stale[0].Node != dead {
		t.Errorf("what the dead host has is not on record: %+v", stale)
	}
}

func TestWhatCannotBeReleasedStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*world) *v1alpha1.CacheVolume
		code    codes.Code
		words   []string
	}{
		"attached": {func(w *world) *v1alpha1.CacheVolume {
			v := w.create("pvc-1")
			_, err := w.publish("pvc-1", v.Spec.Replicas[0])
			must(w.t, err)
			return v
		}, codes.FailedPrecondition, []string{"attached to node"}},
		"with a snapshot": {func(w *world) *v1alpha1.CacheVolume {
			v, _, _ := w.usedBefore("pvc-1")
			_, err := w.service.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "pvc-1"})
			must(w.t, err)
			return v
		}, codes.FailedPrecondition, []string{"first delete the VolumeSnapshots", " s"}},
		"dirty, and the copies are gone": {func(w *world) *v1alpha1.CacheVolume {
			v, _, survivor, _ := w.powerLoss("pvc-1")
			w.host(survivor).Stop()
			w.poll()
			return v
		}, codes.Unavailable, []string{"written back"}},
		"open elsewhere": {func(w *world) *v1alpha1.CacheVolume {
			v, _, _ := w.usedBefore("pvc-1")
			w.images.open[volumes.ImageOf(v)] = []string{"10.9.9.9:0/7"}
			return v
		}, codes.FailedPrecondition, []string{"10.9.9.9:0/7", "rbd status"}},
		"set back": {func(w *world) *v1alpha1.CacheVolume {
			v, holder, _ := w.usedBefore("pvc-1")
			_, err := w.publish("pvc-1", holder)
			must(w.t, err)
			must(w.t, w.unpublish("pvc-1", holder))
			w.setBack(v)
			return v
		}, codes.FailedPrecondition, []string{"the record is older"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := tc.prepare(w)
			w.askRelease("pvc-1", true)
			before, replicas := w.volume("pvc-1"), w.fleet.Replicas()
			err := w.locked.Release(t.Context(), "pvc-1")
			wants(t, err, tc.code, tc.words...)
			must(t, w.locked.ReportRelease(t.Context(), "pvc-1", v1alpha1.ReasonReleaseRefused, err.Error()))
			now := w.volume("pvc-1")
			if now.Status.Phase != v1alpha1.VolumeReady || now.Status.Epoch != before.Status.Epoch || w.fleet.Replicas() != replicas ||
				len(w.images.released) > 0 {
				t.Errorf("it was changed: %+v", now.Status)
			}
			w.askRelease("pvc-1", false)
			must(t, w.locked.ReportRelease(t.Context(), "pvc-1", "", ""))
			for _, c := range w.volume("pvc-1").Status.Conditions {
				if c.Type == v1alpha1.ConditionReleased {
					t.Errorf("a release that was called off is still told of: %+v", c)
				}
			}
			_ = v
		})
	}
}

// TestAReleaseGoesOnAfterACrash: each step has been done, and the record does not say so.
func TestAReleaseGoesOnAfterACrash(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.usedBefore("pvc-1")
	w.askRelease("pvc-1", true)
	now := w.volume("pvc-1")
	now.Status.Phase = v1alpha1.VolumeReleasing
	must(t, w.api.Status().Update(t.Context(), now))
	must(t, w.images.Release(t.Context(), volumes.ImageOf(v), volumes.Note{Epoch: 1}))
	w.images.open[volumes.ImageOf(v)] = []string{"10.9.9.9:0/7"} // somebody uses the image already
	w.restart()
	_, err := w.publish("pvc-1", v.Spec.Replicas[0])
	wants(t, err, codes.FailedPrecondition, "being released")
	must(t, w.locked.Release(t.Context(), "pvc-1"))
	if !w.gone("pvc-1") || w.fleet.Replicas() != 0 {
		t.Errorf("record gone: %t, %d replicas", w.gone("pvc-1"), w.fleet.Replicas())
	}
}

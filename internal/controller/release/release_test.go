package release_test

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestAReleasedVolumeLeavesItsImageAndNothingElse(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.UsedBefore("pvc-1")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	if w.Gone("pvc-1") {
		t.Fatal("released, and nobody asked for it")
	}
	w.AskRelease("pvc-1", true)
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.FailedPrecondition, "being released", "--cancel")
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "its image stays")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	if note := w.Images.Released[volumes.ImageOf(v)]; !w.Gone("pvc-1") || w.Fleet.Replicas() != 0 || note.Epoch != 1 {
		t.Errorf("record gone: %t, %d replicas, note %+v", w.Gone("pvc-1"), w.Fleet.Replicas(), note)
	}
	csitest.Must(t, w.Delete("pvc-1")) // external-provisioner may still ask for it
	if _, there := w.Images.Sizes[volumes.ImageOf(v)]; !there {
		t.Error("the image is gone")
	}
	csitest.Wants(t, w.Locked.Release(t.Context(), "pvc-1"), codes.NotFound)
}

func TestADirtyVolumeIsWrittenBackBeforeItIsReleased(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, _ := w.PowerLoss("pvc-1")
	w.AskRelease("pvc-1", true)
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	if !w.Gone("pvc-1") {
		t.Error("its record is still there")
	}
	if status := w.Host(survivor).Status(csitest.Ref(v)); status.State == "connected" ||
		w.Images.Released[volumes.ImageOf(v)].Epoch < 2 {
		t.Errorf("not written back by %s: %+v", survivor, status)
	}
	group := &v1alpha1.NodeGroup{}
	csitest.Must(t, w.API.Get(t.Context(), client.ObjectKey{Name: "g1"}, group))
	if stale := group.Status.StaleReplicas; len(stale) != 1 || stale[0].Node != dead {
		t.Errorf("what the dead host has is not on record: %+v", stale)
	}
	if !w.Holds(dead, v) {
		t.Errorf("the dead host has nothing dirty")
	}
	w.Host(dead).Restart(t)
	w.Poll()
	if w.Fleet.Replicas() > 0 {
		t.Error("what was dirty on the dead host is in Ceph, and its replica stays")
	}
}

func TestWhatCannotBeReleasedStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*world) *v1alpha1.CacheVolume
		code    codes.Code
		words   []string
	}{
		"attached": {func(w *world) *v1alpha1.CacheVolume {
			v := w.Create("pvc-1")
			_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
			csitest.Must(w.T, err)
			return v
		}, codes.FailedPrecondition, []string{"attached to node"}},
		"with a snapshot": {func(w *world) *v1alpha1.CacheVolume {
			v, _, _ := w.UsedBefore("pvc-1")
			_, err := w.Service.CreateSnapshot(context.Background(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "pvc-1"})
			csitest.Must(w.T, err)
			return v
		}, codes.FailedPrecondition, []string{"first delete the VolumeSnapshots", " s"}},
		"dirty, and the copies are gone": {func(w *world) *v1alpha1.CacheVolume {
			v, _, survivor, _ := w.PowerLoss("pvc-1")
			w.Host(survivor).Stop()
			w.Poll()
			return v
		}, codes.Unavailable, []string{"written back"}},
		"open elsewhere": {func(w *world) *v1alpha1.CacheVolume {
			v, _, _ := w.UsedBefore("pvc-1")
			w.Images.Open[volumes.ImageOf(v)] = []string{"10.9.9.9:0/7"}
			return v
		}, codes.FailedPrecondition, []string{"10.9.9.9:0/7", "rbd status"}},
		"set back": {func(w *world) *v1alpha1.CacheVolume {
			v, holder, _ := w.UsedBefore("pvc-1")
			_, err := w.Publish("pvc-1", holder)
			csitest.Must(w.T, err)
			csitest.Must(w.T, w.Unpublish("pvc-1", holder))
			w.SetBack(v)
			return v
		}, codes.FailedPrecondition, []string{"the record is older"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := tc.prepare(w)
			w.AskRelease("pvc-1", true)
			before, replicas := w.Volume("pvc-1"), w.Fleet.Replicas()
			err := w.Locked.Release(t.Context(), "pvc-1")
			csitest.Wants(t, err, tc.code, tc.words...)
			csitest.Must(t, w.Locked.ReportRelease(t.Context(), "pvc-1", v1alpha1.ReasonReleaseRefused, err.Error()))
			now := w.Volume("pvc-1")
			if now.Status.Phase != v1alpha1.VolumeReady || now.Status.Epoch != before.Status.Epoch || w.Fleet.Replicas() != replicas ||
				len(w.Images.Released) > 0 {
				t.Errorf("it was changed: %+v", now.Status)
			}
			w.AskRelease("pvc-1", false)
			csitest.Must(t, w.Locked.ReportRelease(t.Context(), "pvc-1", "", ""))
			for _, c := range w.Volume("pvc-1").Status.Conditions {
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
	v, _, _ := w.UsedBefore("pvc-1")
	w.releasing("pvc-1")
	csitest.Must(t, w.Images.Release(t.Context(), volumes.ImageOf(v), volumes.Note{Volume: "pvc-1", Epoch: 1}))
	w.Images.Open[volumes.ImageOf(v)] = []string{"10.9.9.9:0/7"} // somebody uses the image already
	w.Restart()
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.FailedPrecondition, "being released")
	csitest.Must(t, w.Locked.Release(t.Context(), "pvc-1"))
	if !w.Gone("pvc-1") || w.Fleet.Replicas() != 0 {
		t.Errorf("record gone: %t, %d replicas", w.Gone("pvc-1"), w.Fleet.Replicas())
	}
}

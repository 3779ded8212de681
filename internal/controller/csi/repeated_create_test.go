package csi_test

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// copies are the two kinds of volumes whose images are made of something. Each makes the volume b of the
// volume a, and returns the call that did it.
var copies = map[string]func(t *testing.T, w *world) *csi.CreateVolumeRequest{
	"of a snapshot": func(t *testing.T, w *world) *csi.CreateVolumeRequest {
		t.Helper()
		w.Create("a")
		s, err := w.Service.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
		csitest.Must(t, err)
		return csitest.FromSnapshot("b", s.GetSnapshot().GetSnapshotId())
	},
	"of another volume": func(t *testing.T, w *world) *csi.CreateVolumeRequest {
		t.Helper()
		w.Create("a")
		return csitest.FromVolume("b", "a")
	},
}

// withoutSource removes what b was made of.
func (w *world) withoutSource() error {
	for name := range w.Snapshots() {
		if err := w.Unsnap(name); err != nil {
			return err
		}
	}
	delete(w.Images.Sizes, csitest.ImageNamed("a"))
	return nil
}

// TestARepeatedCreateKeepsWhatWasUsed: a restored etcd has the record of a volume that was being made when
// the backup was taken, and the volume was used since. Ceph has its only data.
func TestARepeatedCreateKeepsWhatWasUsed(t *testing.T) {
	used := func(t *testing.T, w *world) {
		t.Helper()
		node := w.Volume("b").Spec.Replicas[0]
		_, err := w.Publish("b", node)
		csitest.Must(t, err)
		csitest.Must(t, w.Unpublish("b", node))
	}
	for name, tc := range map[string]struct {
		since func(t *testing.T, w *world)
		code  codes.Code
		words []string
	}{
		"and says so": {used, codes.FailedPrecondition, []string{"epoch 1", "the record says 0"}},
		"and only its hosts say so": {func(t *testing.T, w *world) {
			t.Helper()
			used(t, w)
			w.Images.Notes[csitest.ImageNamed("b")] = volumes.Note{} // an older version noted nothing
		}, codes.FailedPrecondition, []string{"epoch 1", "the record says 0"}},
		"and its source is gone": {func(t *testing.T, w *world) {
			t.Helper()
			used(t, w)
			csitest.Must(t, w.withoutSource())
		}, codes.FailedPrecondition, []string{"epoch 1", "the record says 0"}},
		"and a later version of the driver says something": {func(_ *testing.T, w *world) {
			w.Images.Notes[csitest.ImageNamed("b")] = volumes.Note{Later: true}
		}, codes.Unavailable, []string{"a later version"}},
	} {
		for kind, create := range copies {
			t.Run(kind+", "+name, func(t *testing.T) {
				w := newWorld(t)
				request := create(t, w)
				_, err := w.Service.CreateVolume(t.Context(), request)
				csitest.Must(t, err)
				tc.since(t, w)
				w.BeforeItWasMade("b")
				made := w.Images.Made
				for range 2 {
					_, err = w.Service.CreateVolume(t.Context(), request)
					csitest.Wants(t, err, tc.code, tc.words...)
				}
				if _, there := w.Images.Sizes[csitest.ImageNamed("b")]; !there || w.Images.Made != made {
					t.Error("the image was thrown away")
				}
				if w.Gone("b") {
					t.Error("the record was thrown away")
				}
				behind := meta.IsStatusConditionTrue(w.Volume("b").Status.Conditions, v1alpha1.ConditionRecordBehindDisks)
				if behind != (tc.words[0] == "epoch 1") {
					t.Errorf("the record is behind: %v", behind)
				}
			})
		}
	}
}

// TestARepeatedCreateTakesTheImageThatIsComplete: nobody has used it yet, and it may be all that is left of
// what it was made of.
func TestARepeatedCreateTakesTheImageThatIsComplete(t *testing.T) {
	for kind, create := range copies {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			request := create(t, w)
			_, err := w.Service.CreateVolume(t.Context(), request)
			csitest.Must(t, err)
			csitest.Must(t, w.withoutSource())
			w.BeforeItWasMade("b")
			made := w.Images.Made
			_, err = w.Service.CreateVolume(t.Context(), request)
			csitest.Must(t, err)
			if _, there := w.Images.Sizes[csitest.ImageNamed("b")]; !there || w.Images.Made != made {
				t.Error("the image was made again")
			}
			if w.Volume("b").Status.Phase != v1alpha1.VolumeReady {
				t.Errorf("status %+v", w.Volume("b").Status)
			}
		})
	}
}

// TestARepeatedCreateKeepsAnImageThatSaysNothing: nobody knows whose data it has.
func TestARepeatedCreateKeepsAnImageThatSaysNothing(t *testing.T) {
	for kind, create := range copies {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			request := create(t, w)
			_, err := w.Service.CreateVolume(t.Context(), request)
			csitest.Must(t, err)
			w.BeforeItWasMade("b")
			made := w.Images.Made
			w.Images.Reading = fmt.Errorf("its note cannot be read: %w", volumes.ErrRefused)
			_, err = w.Service.CreateVolume(t.Context(), request)
			csitest.Wants(t, err, codes.Unavailable, "cannot be read")
			if _, there := w.Images.Sizes[csitest.ImageNamed("b")]; !there || w.Images.Made != made || w.Gone("b") {
				t.Error("the image or its record was thrown away")
			}
		})
	}
}

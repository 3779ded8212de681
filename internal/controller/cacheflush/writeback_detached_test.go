package cacheflush_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// writeBack takes a bite of a write-back without a pod.
func (w *world) writeBack(id string) error {
	return w.Locked.WriteBackDetached(w.T.Context(), id, 5*time.Second)
}

func TestADetachedVolumeIsWrittenBackWithoutAPodInBites(t *testing.T) {
	w := newWorld(t)
	v, _, survivor, _ := w.PowerLoss("pvc-1")
	w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 2)
	err := w.writeBack("pvc-1")
	csitest.Wants(t, err, codes.Aborted, survivor)
	if unfinished, ok := errors.AsType[*volumes.UnfinishedError](err); !ok || unfinished.LeftBytes != csitest.DirtyBytes/2 ||
		unfinished.Node != survivor {
		t.Errorf("%+v", err)
	}
	if s := w.Volume("pvc-1").Status; !s.FlushAttached() || s.AttachedNode != survivor {
		t.Fatalf("status %+v", s)
	}
	w.Restart() // another process goes on
	csitest.Must(t, w.writeBack("pvc-1"))
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || s.DirtyBytes != 0 || s.Epoch != 2 {
		t.Errorf("status %+v", s)
	}
	if _, connected := w.Host(survivor).Connected(csitest.Ref(v)); connected {
		t.Errorf("%s still has the device", survivor)
	}
	csitest.Must(t, w.writeBack("pvc-1"))
	if s := w.Volume("pvc-1").Status; s.Epoch != 2 {
		t.Errorf("there was nothing to do, and the record says %+v", s)
	}
}

// A pod need not wait for the end of such a write-back: the host that has begun it gives the volume to the pod
// as it is, and for another host it goes on with it.
func TestAPodGetsAVolumeThatIsBeingWrittenBackWithoutOne(t *testing.T) {
	for _, there := range []bool{true, false} {
		w := newWorld(t)
		_, _, survivor, third := w.PowerLoss("pvc-1")
		w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 2)
		csitest.Wants(t, w.writeBack("pvc-1"), codes.Aborted)
		node := third
		if there {
			node = survivor
		}
		_, err := w.Publish("pvc-1", node)
		csitest.Must(t, err)
		if s := w.Volume("pvc-1").Status; s.AttachedNode != node || s.FlushAttached() || s.Epoch != 3 {
			t.Errorf("there %v: status %+v", there, s)
		}
		if err := w.writeBack("pvc-1"); !errors.Is(err, authority.ErrAttached) {
			t.Errorf("there %v: a pod has it, and the write-back says %v", there, err)
		}
	}
}

// Whoever attaches or deletes it waits until a bite has ended, and not for the sidecar's next try.
func TestACallWaitsForABiteOfAWriteBack(t *testing.T) {
	w := newWorld(t)
	w.PowerLoss("pvc-1")
	w.waitsFor(t, volumes.WritingBack, func() error { return w.Delete("pvc-1") })
}

// waitsFor demands that a call waits until an operation on pvc-1 has ended, and then succeeds.
func (w *world) waitsFor(t *testing.T, operation string, call func() error) {
	t.Helper()
	end, err := w.Locks.Begin("pvc-1", operation)
	csitest.Must(t, err)
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	end()
	csitest.Must(t, <-done)
}

func TestNothingIsWrittenBackByARecordThatMayBeWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world, v *v1alpha1.CacheVolume)
		code   codes.Code
		says   string
	}{
		"it is being made": {func(_ *world, v *v1alpha1.CacheVolume) { v.Status.Phase = "" }, codes.FailedPrecondition, "being made"},
		"nobody knows the truth": {func(_ *world, v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeConflict },
			codes.FailedPrecondition, "adopt --all"},
		"a host knew better": {func(_ *world, v *v1alpha1.CacheVolume) {
			meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionRecordBehindDisks, Status: metav1.ConditionTrue, Reason: "LaterAttachmentSeen",
			})
		}, codes.FailedPrecondition, "docs/restore-etcd.md"},
		"a host knows better": {func(w *world, v *v1alpha1.CacheVolume) {
			w.Host(v.Spec.Replicas[0]).Restart(w.T)
			w.Host(v.Spec.Replicas[0]).SetEpoch(csitest.Ref(v), 7)
		}, codes.FailedPrecondition, "the host has seen epoch 7"},
		"the image knows better": {func(w *world, v *v1alpha1.CacheVolume) {
			note := w.Images.Notes[volumes.ImageOf(v)]
			note.Epoch = 7
			w.Images.Notes[volumes.ImageOf(v)] = note
		}, codes.FailedPrecondition, "metadata has epoch 7"},
		"no copy is current": {func(_ *world, v *v1alpha1.CacheVolume) {
			v.Status.Outdated = slices.Clone(v.Spec.Replicas)
		}, codes.FailedPrecondition, "no current replica left"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, _, survivor, _ := w.PowerLoss("pvc-1")
			tc.change(w, v)
			csitest.Must(t, w.API.Status().Update(t.Context(), v))
			csitest.Wants(t, w.writeBack("pvc-1"), tc.code, tc.says)
			if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Epoch != 1 || s.Authority != v1alpha1.AuthorityCache {
				t.Errorf("status %+v", s)
			}
			if _, connected := w.Host(survivor).Connected(csitest.Ref(v)); connected {
				t.Errorf("%s has the device", survivor)
			}
		})
	}
}

package csi_test

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
)

// writeBack takes a bite of a write-back without a pod.
func (w *world) writeBack(id string) error {
	return w.locked.WriteBackDetached(w.t.Context(), id, 5*time.Second)
}

func TestADetachedVolumeIsWrittenBackWithoutAPodInBites(t *testing.T) {
	w := newWorld(t)
	v, _, survivor, _ := w.powerLoss("pvc-1")
	w.host(survivor).FlushAtMost(dirtyBytes / 2)
	err := w.writeBack("pvc-1")
	wants(t, err, codes.Aborted, survivor)
	if unfinished, ok := errors.AsType[*volumes.UnfinishedError](err); !ok || unfinished.LeftBytes != dirtyBytes/2 || unfinished.Node != survivor {
		t.Errorf("%+v", err)
	}
	if s := w.volume("pvc-1").Status; !s.FlushAttached() || s.AttachedNode != survivor {
		t.Fatalf("status %+v", s)
	}
	w.restart() // another process goes on
	must(t, w.writeBack("pvc-1"))
	if s := w.volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || s.DirtyBytes != 0 || s.Epoch != 2 {
		t.Errorf("status %+v", s)
	}
	if _, connected := w.host(survivor).Connected(ref(v)); connected {
		t.Errorf("%s still has the device", survivor)
	}
	must(t, w.writeBack("pvc-1"))
	if s := w.volume("pvc-1").Status; s.Epoch != 2 {
		t.Errorf("there was nothing to do, and the record says %+v", s)
	}
}

// A pod need not wait for the end of such a write-back: the host that has begun it gives the volume to the pod
// as it is, and for another host it goes on with it.
func TestAPodGetsAVolumeThatIsBeingWrittenBackWithoutOne(t *testing.T) {
	for _, there := range []bool{true, false} {
		w := newWorld(t)
		_, _, survivor, third := w.powerLoss("pvc-1")
		w.host(survivor).FlushAtMost(dirtyBytes / 2)
		wants(t, w.writeBack("pvc-1"), codes.Aborted)
		node := third
		if there {
			node = survivor
		}
		_, err := w.publish("pvc-1", node)
		must(t, err)
		if s := w.volume("pvc-1").Status; s.AttachedNode != node || s.FlushAttached() || s.Epoch != 3 {
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
	w.powerLoss("pvc-1")
	end, err := w.locks.Begin("pvc-1", volumes.WritingBack)
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- w.delete("pvc-1") }()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	end()
	must(t, <-done)
}

func TestNothingIsWrittenBackByARecordThatMayBeWrong(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world, v *v1alpha1.CacheVolume)
		code   codes.Code
		says   string
	}{
		"it is being made":       {func(_ *world, v *v1alpha1.CacheVolume) { v.Status.Phase = "" }, codes.FailedPrecondition, "being made"},
		"nobody knows the truth": {func(_ *world, v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeConflict }, codes.FailedPrecondition, "adopt --all"},
		"a host knew better": {func(_ *world, v *v1alpha1.CacheVolume) {
			meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
				Type: v1alpha1.ConditionRecordBehindDisks, Status: metav1.ConditionTrue, Reason: "LaterAttachmentSeen",
			})
		}, codes.FailedPrecondition, "docs/restore-etcd.md"},
		"a host knows better": {func(w *world, v *v1alpha1.CacheVolume) {
			w.host(v.Spec.Replicas[0]).Restart(w.t)
			w.host(v.Spec.Replicas[0]).SetEpoch(ref(v), 7)
		}, codes.FailedPrecondition, "the host has seen epoch 7"},
		"the image knows better": {func(w *world, v *v1alpha1.CacheVolume) {
			note := w.images.notes[volumes.ImageOf(v)]
			note.Epoch = 7
			w.images.notes[volumes.ImageOf(v)] = note
		}, codes.FailedPrecondition, "metadata has epoch 7"},
		"no copy is current": {func(_ *world, v *v1alpha1.CacheVolume) {
			v.Status.Outdated = slices.Clone(v.Spec.Replicas)
		}, codes.FailedPrecondition, "no current replica left"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, _, survivor, _ := w.powerLoss("pvc-1")
			tc.change(w, v)
			must(t, w.api.Status().Update(t.Context(), v))
			wants(t, w.writeBack("pvc-1"), tc.code, tc.says)
			if s := w.volume("pvc-1").Status; s.AttachedNode != "" || s.Epoch != 1 || s.Authority != v1alpha1.AuthorityCache {
				t.Errorf("status %+v", s)
			}
			if _, connected := w.host(survivor).Connected(ref(v)); connected {
				t.Errorf("%s has the device", survivor)
			}
		})
	}
}

package attachment_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/test/csitest"
)

func TestDirtyVolumeIsWrittenBackForANodeWithoutACopy(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, third := w.PowerLoss("pvc-1")
	out, err := w.Publish("pvc-1", third)
	csitest.Must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "3" { // the pod's, the flush's, the pod's
		t.Errorf("publish context %v", out)
	}
	now := w.Volume("pvc-1")
	if s := now.Status; s.AttachedNode != third || s.FlushAttached() || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("status %+v", s)
	}
	if on := now.Spec.Replicas; !slices.Contains(on, third) || slices.Contains(on, dead) {
		t.Errorf("replicas on %v", on)
	}
	if _, connected := w.Host(survivor).Connected(csitest.Ref(v)); connected {
		t.Errorf("%s still has the device", survivor)
	}
}

func TestOutdatedReplicaIsNeverGivenTheVolume(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	holder, stale := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", holder)
	csitest.Must(t, err)
	w.Host(holder).Write(csitest.Ref(v), csitest.DirtyBytes)
	v = w.Volume("pvc-1")
	v.Status.Outdated = []string{stale}
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	csitest.Must(t, w.Unpublish("pvc-1", holder))

	w.Host(holder).Stop()
	_, err = w.Publish("pvc-1", stale)
	csitest.Wants(t, err, codes.Unavailable, stale+" has no current copy", holder+" does not answer")
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" {
		t.Fatalf("status %+v", s)
	}

	// The current copy is written back, and the stale one laid again.
	w.Host(holder).Restart(t)
	_, err = w.Publish("pvc-1", stale)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; len(s.Outdated) > 0 || s.AttachedNode != stale {
		t.Errorf("status %+v", s)
	}
}

func TestAFlushThatTakesLongGoesOnWithTheRepeatedCall(t *testing.T) {
	w := newWorld(t)
	v, dead, survivor, third := w.PowerLoss("pvc-1")
	w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 2)
	_, err := w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Aborted, survivor, "writes back volume pvc-1")
	held := w.Volume("pvc-1")
	if s := held.Status; !s.FlushAttached() || s.AttachedNode != survivor || s.Epoch != 2 {
		t.Fatalf("status %+v", s)
	}

	// No pod has it, so it is published nowhere, and nothing that Kubernetes says of other nodes
	// ends it.
	list, err := w.Service.ListVolumes(context.Background(), &csi.ListVolumesRequest{})
	csitest.Must(t, err)
	if on := list.GetEntries()[0].GetStatus().GetPublishedNodeIds(); len(on) > 0 {
		t.Errorf("published on %v", on)
	}
	for _, node := range []string{third, survivor, dead, ""} {
		csitest.Must(t, w.Unpublish("pvc-1", node))
	}
	if s := w.Volume("pvc-1").Status; !s.FlushAttached() || s.AttachedNode != survivor {
		t.Fatalf("status %+v", s)
	}

	w.Restart()
	_, err = w.Publish("pvc-1", third)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.AttachedNode != third || s.Epoch != 3 {
		t.Errorf("status %+v", s)
	}
	if epoch, connected := w.Host(survivor).Connected(csitest.Ref(v)); connected {
		t.Errorf("%s still has the device, epoch %d", survivor, epoch)
	}
}

func TestAPodMayHaveTheVolumeWhereItIsBeingWrittenBack(t *testing.T) {
	w := newWorld(t)
	v, _, survivor, third := w.PowerLoss("pvc-1")
	w.Host(survivor).FlushAtMost(1)
	_, err := w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Aborted)
	out, err := w.Publish("pvc-1", survivor)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; out[v1alpha1.PublishContextEpoch] != "3" || s.AttachedNode != survivor || s.FlushAttached() {
		t.Errorf("publish context %v, status %+v", out, s)
	}
	// Now a pod has it, and nobody else ends that.
	_, err = w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.FailedPrecondition, "attached to node "+survivor)
	if epoch, connected := w.Host(survivor).Connected(csitest.Ref(v)); !connected || epoch != 2 {
		t.Errorf("connected %v with epoch %d", connected, epoch)
	}
}

func TestTheOtherCopyIsWrittenBackWhereTheFirstCannotBe(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	first, second, third := v.Spec.Replicas[0], v.Spec.Replicas[1], csitest.Other(v)
	_, err := w.Publish("pvc-1", first)
	csitest.Must(t, err)
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), csitest.DirtyBytes)
	}
	csitest.Must(t, w.Unpublish("pvc-1", first))
	w.Host(first).SetDisk(csitest.Ref(v), "Consistent") // and nobody confirms that it is current
	w.Host(second).SetDisk(csitest.Ref(v), "Negotiating")
	_, err = w.Publish("pvc-1", third)
	csitest.Must(t, err)
	if epoch, _ := w.Host(second).Connected(csitest.Ref(v)); epoch > 0 {
		t.Errorf("%s is laid anew or gone, and has epoch %d", second, epoch)
	}
	if s := w.Volume("pvc-1").Status; s.AttachedNode != third {
		t.Errorf("status %+v", s)
	}
}

func TestAHostThatDiesWhileItWritesBackIsFenced(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	first, second, third := v.Spec.Replicas[0], v.Spec.Replicas[1], csitest.Other(v)
	_, err := w.Publish("pvc-1", first)
	csitest.Must(t, err)
	for _, n := range v.Spec.Replicas {
		w.Host(n).Write(csitest.Ref(v), csitest.DirtyBytes)
		w.Host(n).FlushAtMost(csitest.DirtyBytes / 2)
	}
	csitest.Must(t, w.Unpublish("pvc-1", first))
	_, err = w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Aborted)
	now := w.Volume("pvc-1")
	flusher := now.Status.AttachedNode
	now.Status.ClientAddress = "10.0.0.9:0/9" // as csi-node there records it
	csitest.Must(t, w.API.Status().Update(context.Background(), now))
	w.Host(flusher).Stop()
	_, err = w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Unavailable, flusher, "out-of-service")
	if len(w.Images.Fenced) > 0 {
		t.Fatalf("fenced %v, and Kubernetes says that it lives", w.Images.Fenced)
	}
	w.Taint(flusher)
	w.Poll()
	survivor := map[string]string{first: second, second: first}[flusher]
	w.Host(survivor).FlushAtMost(0)
	for range 2 {
		if _, err = w.Publish("pvc-1", third); err == nil {
			break
		}
		csitest.Wants(t, err, codes.Unavailable)
	}
	csitest.Must(t, err)
	if !slices.Equal(w.Images.Fenced, []string{"10.0.0.9:0/9"}) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}
	if s := w.Volume("pvc-1").Status; s.AttachedNode != third || len(s.Fenced) != 1 {
		t.Errorf("status %+v", s)
	}
}

func TestDeletingGoesOnWithTheFlush(t *testing.T) {
	w := newWorld(t)
	v, _, survivor, third := w.PowerLoss("pvc-1")
	w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 2)
	_, err := w.Publish("pvc-1", third)
	csitest.Wants(t, err, codes.Aborted)
	w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 4)
	csitest.Wants(t, w.Delete("pvc-1"), codes.Aborted, survivor)
	csitest.Must(t, w.Delete("pvc-1"))
	if w.Host(survivor).Has(csitest.Ref(v)) {
		t.Errorf("%s still has its replica", survivor)
	}
}

// takenFromTheWriteBack is a volume that a pod got where it is being written back, for another node. It goes on slowly.
func (w *world) takenFromTheWriteBack(id string) (v *v1alpha1.CacheVolume, survivor, third string) {
	w.T.Helper()
	v, _, survivor, third = w.PowerLoss(id)
	w.Host(survivor).FlushAtMost(1)
	_, err := w.Publish(id, third)
	csitest.Wants(w.T, err, codes.Aborted)
	_, err = w.Publish(id, survivor)
	csitest.Must(w.T, err)
	return v, survivor, third
}

// givenBack is a volume that a pod got where it was being written back. The pod is gone, and nobody has staged it.
func (w *world) givenBack(id string) (v *v1alpha1.CacheVolume, survivor, third string) {
	w.T.Helper()
	v, survivor, third = w.takenFromTheWriteBack(id)
	csitest.Must(w.T, w.Unpublish(id, survivor))
	return v, survivor, third
}

func TestAPodThatIsGoneBeforeItStagedGivesTheVolumeBackToTheWriteBack(t *testing.T) {
	w := newWorld(t)
	v, survivor, third := w.givenBack("pvc-1")
	s := w.Volume("pvc-1").Status
	if !s.FlushAttached() || s.AttachedNode != survivor || s.Epoch != 4 || s.Authority != v1alpha1.AuthorityCache {
		t.Fatalf("status %+v", s)
	}
	csitest.Must(t, w.Unpublish("pvc-1", survivor)) // the answer may have been lost
	if now := w.Volume("pvc-1").Status; now.Epoch != 4 {
		t.Errorf("it is given back twice: %+v", now)
	}
	w.Restart()
	w.Host(survivor).FlushAtMost(0)
	_, err := w.Publish("pvc-1", third)
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.AttachedNode != third || s.FlushAttached() || s.Epoch != 5 {
		t.Errorf("status %+v", s)
	}
	if epoch, connected := w.Host(survivor).Connected(csitest.Ref(v)); connected {
		t.Errorf("%s still has the device, epoch %d", survivor, epoch)
	}
}

// NodeStage of the pod's attachment has read the record before it was given back.
func TestAStageThatComesAfterItWasGivenBackIsRefused(t *testing.T) {
	w := newWorld(t)
	v, survivor, third := w.givenBack("pvc-1")
	now := w.Volume("pvc-1")
	if err := authority.MayStage(now, survivor, 3); !errors.Is(err, authority.ErrRefused) {
		t.Errorf("csi-node may stage it: %v", err)
	}
	_, err := w.Publish("pvc-1", third) // goes on with the write-back
	csitest.Wants(t, err, codes.Aborted, survivor)
	late := cachevolume.ConnectRequest(now)
	late.Epoch = 3
	err = w.Hosts().DevConnect(t.Context(), survivor, now.Status.HostID(survivor), late)
	if problem, is := errors.AsType[*escache.Problem](err); !is || problem.Code != escache.CodeStaleEpoch {
		t.Errorf("escached connects it: %v", err)
	}
	if epoch, _ := w.Host(survivor).Connected(csitest.Ref(v)); epoch != 4 {
		t.Errorf("the device is of epoch %d", epoch)
	}
}

func TestAPodMayComeBackAfterItWasGivenBack(t *testing.T) {
	w := newWorld(t)
	_, survivor, third := w.givenBack("pvc-1")
	out, err := w.Publish("pvc-1", survivor)
	csitest.Must(t, err)
	if out[v1alpha1.PublishContextEpoch] != "5" {
		t.Errorf("publish context %v", out)
	}
	csitest.Must(t, w.Unpublish("pvc-1", survivor))
	w.Host(survivor).FlushAtMost(0)
	_, err = w.Publish("pvc-1", third)
	csitest.Must(t, err)
}

func TestAStagedVolumeIsNotGivenBack(t *testing.T) {
	w := newWorld(t)
	v, survivor, _ := w.takenFromTheWriteBack("pvc-1")
	now := w.Volume("pvc-1")
	csitest.Must(t, w.Hosts().DevConnect(t.Context(), survivor, now.Status.HostID(survivor), cachevolume.ConnectRequest(now)))
	csitest.Wants(t, w.Unpublish("pvc-1", survivor), codes.FailedPrecondition, "unstaged there first")
	if s := w.Volume("pvc-1").Status; s.FlushAttached() || s.Epoch != 3 {
		t.Errorf("status %+v", s)
	}
	if epoch, connected := w.Host(survivor).Connected(csitest.Ref(v)); !connected || epoch != 3 {
		t.Errorf("connected %v with epoch %d", connected, epoch)
	}
}

// The number of the next attachment may have been given before the record was set back.
func TestNothingIsGivenBackByARecordThatWasSetBack(t *testing.T) {
	w := newWorld(t)
	v, survivor, _ := w.takenFromTheWriteBack("pvc-1")
	old := w.Volume("pvc-1")
	csitest.Must(t, w.Unpublish("pvc-1", survivor))
	_, err := w.Publish("pvc-1", survivor) // notes epoch 5 in the image
	csitest.Must(t, err)
	w.SetBack(old)
	err = w.Unpublish("pvc-1", survivor)
	csitest.Wants(t, err, codes.FailedPrecondition, "epoch 5")
	if s := w.Volume("pvc-1").Status; s.Epoch != 3 || s.FlushAttached() {
		t.Errorf("status %+v", s)
	}
	if epoch, connected := w.Host(survivor).Connected(csitest.Ref(v)); !connected || epoch != 2 {
		t.Errorf("connected %v with epoch %d", connected, epoch)
	}
}

func TestDeletingGoesOnWithWhatWasGivenBack(t *testing.T) {
	w := newWorld(t)
	v, survivor, _ := w.givenBack("pvc-1")
	w.Host(survivor).FlushAtMost(0)
	csitest.Must(t, w.Delete("pvc-1"))
	if w.Host(survivor).Has(csitest.Ref(v)) {
		t.Errorf("%s still has its replica", survivor)
	}
}

// A discard ends an attachment, too. What comes after it began nowhere where the volume was being written back.
func TestAnAttachmentAfterADiscardIsNotTakenForOneThatBeganInAWriteBack(t *testing.T) {
	w := newWorld(t)
	w.Create("pvc-1")
	v := w.Volume("pvc-1")
	v.Status.FlushEpoch = 1
	v.Status.Epoch = 1
	csitest.Must(t, w.API.Status().Update(t.Context(), v))
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.Epoch != 2 || s.FlushEpoch != 0 {
		t.Errorf("status %+v", s)
	}
}

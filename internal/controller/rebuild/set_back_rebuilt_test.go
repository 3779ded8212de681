package rebuild_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// linked has both hosts see each other's copy as current.
func (w *world) linked(v *v1alpha1.CacheVolume) {
	w.T.Helper()
	for n, node := range v.Spec.Replicas {
		w.Host(node).See(csitest.Ref(v), v.Spec.Replicas[1-n], escache.LinkConnected, escache.DiskUpToDate)
	}
}

// provenSince makes a volume as writtenSince does. Both hosts know the later attachment, and their copies are equal.
func (w *world) provenSince(id string) (v *v1alpha1.CacheVolume, holder, partner string) {
	w.T.Helper()
	v, holder, partner = w.WrittenSince(id)
	w.Host(partner).Change(csitest.Ref(v), func(s *escache.VolumeStatus) { s.Epoch = 2 })
	w.linked(v)
	return v, holder, partner
}

// TestARecordThatWasSetBackIsBroughtUpToDate: image and hosts know what the record has lost.
func TestARecordThatWasSetBackIsBroughtUpToDate(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.provenSince("pvc-1")
	image := volumes.ImageOf(v).Image
	_, err := w.Publish("pvc-1", holder)
	csitest.Wants(t, err, codes.FailedPrecondition, "older than", "docs/restore-etcd.md")

	line := w.rebuild(dryRun)[image]
	if line.Outcome != v1alpha1.RebuildProposed || line.Epoch != 3 || line.PersistentVolume != "" {
		t.Fatalf("proposed: %+v", line)
	}
	if is := w.Volume("pvc-1").Status; is.Epoch != 1 || is.Phase != v1alpha1.VolumeReady {
		t.Fatalf("a dry run has changed the record: %+v", is)
	}
	if line = w.rebuild(nil)[image]; line.Outcome != v1alpha1.RebuildDone {
		t.Fatalf("%+v", line)
	}
	s := w.Volume("pvc-1").Status
	if s.Phase != v1alpha1.VolumeReady || s.Authority != v1alpha1.AuthorityCache || s.Epoch != 3 || s.AttachedNode != "" ||
		s.DirtyBytes != csitest.DirtyBytes || meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionRecordBehindDisks) ||
		meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionCopyProven) != nil {
		t.Fatalf("status %+v", s)
	}
	if line = w.rebuild(nil)[image]; line.Outcome != v1alpha1.RebuildRecorded {
		t.Errorf("once more: %+v", line)
	}
	if _, err := w.Publish("pvc-1", partner); err != nil {
		t.Error(err)
	}
	if !w.Holds(partner, v) {
		t.Error("what was written is gone")
	}
}

// TestAnAttachmentOfARecordThatWasSetBackEnds: the record says that a host has the volume, which another one
// has taken over since.
func TestAnAttachmentOfARecordThatWasSetBackEnds(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.TakenOverSince("pvc-1")
	image := volumes.ImageOf(v).Image
	if line := w.rebuild(nil)[image]; line.Outcome != v1alpha1.RebuildWaits ||
		!strings.Contains(line.Message, partner+" still has the device") {
		t.Fatalf("the other host has it: %+v", line)
	}
	w.Host(partner).Release(csitest.Ref(v))
	w.Host(holder).Restart(t)
	w.Host(holder).Change(csitest.Ref(v), func(s *escache.VolumeStatus) { s.DiskState = escache.DiskOutdated })
	w.Host(partner).See(csitest.Ref(v), holder, escache.LinkWFConnection, escache.DiskOutdated)
	w.Host(holder).See(csitest.Ref(v), partner, escache.LinkWFConnection, escache.DiskUnknown)
	line := w.rebuild(nil)[image]
	if line.Outcome != v1alpha1.RebuildDone || !slices.Equal(line.Outdated, []string{holder}) {
		t.Fatalf("%+v", line)
	}
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.ClientAddress != "" || !slices.Equal(s.Outdated, []string{holder}) {
		t.Fatalf("status %+v", s)
	}
	csitest.Must(t, w.Unpublish("pvc-1", holder))
	if _, err := w.Publish("pvc-1", partner); err != nil {
		t.Error(err)
	}
}

// TestARecordThatWasSetBackIsStoppedWhereNothingIsProven until a person decides.
func TestARecordThatWasSetBackIsStoppedWhereNothingIsProven(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.WrittenSince("pvc-1")
	w.cut(v)
	image := volumes.ImageOf(v).Image
	if line := w.rebuild(nil)[image]; line.Outcome != v1alpha1.RebuildConflict {
		t.Fatalf("%+v", line)
	}
	s := w.Volume("pvc-1").Status
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionCopyProven); s.Phase != v1alpha1.VolumeConflict || c == nil ||
		!strings.Contains(c.Message, "nothing proves") {
		t.Fatalf("status %+v", s)
	}
	for _, node := range []string{holder, partner} {
		_, err := w.Publish("pvc-1", node)
		csitest.Wants(t, err, codes.FailedPrecondition, "nothing proves")
	}
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "nothing proves")
	line := w.rebuild(func(s *v1alpha1.CacheAdoptionSpec) { s.Image, s.Rebuild.UseCopy = image, partner })[image]
	if line.Outcome != v1alpha1.RebuildDone {
		t.Fatalf("%+v", line)
	}
	if _, err := w.Publish("pvc-1", partner); err != nil {
		t.Error(err)
	}
}

// TestARecordThatIsTheNewestStays, whatever is asked.
func TestARecordThatIsTheNewestStays(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", csitest.DirtyBytes)
	before := w.Volume("pvc-1")
	image := volumes.ImageOf(v).Image
	line := w.rebuild(func(s *v1alpha1.CacheAdoptionSpec) { s.Image, s.Rebuild.UseCopy = image, v.Spec.Replicas[1] })[image]
	if line.Outcome != v1alpha1.RebuildRecorded || line.Epoch != before.Status.Epoch {
		t.Errorf("%+v", line)
	}
	if now := w.Volume("pvc-1"); now.ResourceVersion != before.ResourceVersion {
		t.Errorf("it was changed: %+v", now.Status)
	}
}

// TestTheUpdateOfARecordGoesOnAfterACrash, and the volume is stopped until it ends.
func TestTheUpdateOfARecordGoesOnAfterACrash(t *testing.T) {
	w := newWorld(t)
	v, holder, _ := w.provenSince("pvc-1")
	image := volumes.ImageOf(v).Image
	w.Images.Left, w.Images.FailFence = map[volumes.ImageRef][]string{volumes.ImageOf(v): {csitest.OldClient}}, volumes.ErrUnavailable
	if line := w.rebuild(nil)[image]; line.Outcome != v1alpha1.RebuildWaits {
		t.Fatalf("%+v", line)
	}
	w.Restart()
	_, err := w.Publish("pvc-1", holder)
	csitest.Wants(t, err, codes.FailedPrecondition, "nothing proves")
	w.Images.Left, w.Images.FailFence = nil, nil
	if line := w.rebuild(nil)[image]; line.Outcome != v1alpha1.RebuildDone {
		t.Fatalf("%+v", line)
	}
	if _, err := w.Publish("pvc-1", holder); err != nil {
		t.Error(err)
	}
}

// TestARecordOfAnotherPlaceIsNotBroughtUpToDate: the volume has moved since, and a record cannot change that.
func TestARecordOfAnotherPlaceIsNotBroughtUpToDate(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.provenSince("pvc-1")
	image := volumes.ImageOf(v)
	now := w.Volume("pvc-1")
	now.Spec.Port++
	csitest.Must(t, w.API.Update(t.Context(), now))
	if line := w.rebuild(nil)[image.Image]; line.Outcome != v1alpha1.RebuildRefused ||
		!strings.Contains(line.Message, "docs/restore-etcd.md") {
		t.Errorf("%+v", line)
	}
	if s := w.Volume("pvc-1").Status; s.Phase != v1alpha1.VolumeReady || s.Epoch != 1 {
		t.Errorf("status %+v", s)
	}
}

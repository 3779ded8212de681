package rebuild_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/marking"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// adoptedSince makes pvc-1, releases it, adopts its image as adopted-1 in another group and writes to that. Then it
// restores an etcd from before the release.
func (w *world) adoptedSince() (image volumes.ImageRef, now *v1alpha1.CacheVolume) {
	w.T.Helper()
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g2"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n4", "n5", "n6"}}}
	csitest.Must(w.T, w.API.Create(w.T.Context(), group))
	w.PollBoth()
	old, _, _ := w.UsedBefore("pvc-1")
	image = volumes.ImageOf(old)
	w.AskRelease("pvc-1", true)
	csitest.Must(w.T, w.Locked.Release(w.T.Context(), "pvc-1"))
	if !w.Gone("pvc-1") {
		w.T.Fatal("pvc-1 was not released")
	}
	w.Images.Seen[image] = volumes.Inspection{SizeBytes: old.Spec.SizeBytes, Released: w.Images.Released[image]}
	_, err := w.Locked.Adopt(w.T.Context(), volumes.Adoption{
		ImageRef: image, Volume: "adopted-1", Request: "r1", Groups: []string{"g2"}, Engine: old.Spec.Engine(), Mode: old.Spec.CacheMode,
		Cache: func(int64) int64 { return old.Spec.CacheBytes },
	})
	csitest.Must(w.T, err)
	_, err = w.Publish("adopted-1", w.Volume("adopted-1").Spec.Replicas[0])
	csitest.Must(w.T, err)
	now = w.Volume("adopted-1")
	w.linked(now)
	for _, node := range now.Spec.Replicas {
		w.Host(node).Write(csitest.Ref(now), csitest.DirtyBytes)
	}

	w.wipe()
	back := old.DeepCopy()
	back.ResourceVersion, back.UID = "", ""
	csitest.Must(w.T, w.API.Create(w.T.Context(), back))
	back.Status = old.Status
	csitest.Must(w.T, w.API.Status().Update(w.T.Context(), back))
	w.Restart()
	w.PollBoth()
	return image, now
}

// TestAnImageIsNotTakenBackFromWhoAdoptedIt: its metadata is of the volume that has it now.
func TestAnImageIsNotTakenBackFromWhoAdoptedIt(t *testing.T) {
	w := newWorld(t, "n4", "n5", "n6")
	image, now := w.adoptedSince()
	stays := func(after string) {
		t.Helper()
		_, there := w.Images.Sizes[image]
		if note := w.Images.Notes[image]; !there || note.Volume != "adopted-1" || w.Images.MarkOf(image) != "adopted-1" {
			t.Fatalf("after %s: the image is there: %v; its mark is of %s, its note of %s", after, there, w.Images.MarkOf(image), note.Volume)
		}
	}
	// csi-controller does this when it starts.
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond) // it tries for as long as one image cannot be marked
	defer cancel()
	csitest.Must(t, marking.New(marking.Config{
		Reader: w.API, Images: w.Images, Log: slog.New(slog.DiscardHandler), Again: time.Second, Parallel: 1,
	}).Start(ctx))
	stays("the marking")
	_, err := w.Publish("pvc-1", w.Volume("pvc-1").Spec.Replicas[0])
	csitest.Wants(t, err, codes.FailedPrecondition, "adopted-1", "docs/restore-etcd.md")
	stays("an attachment")
	csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "adopted-1", "docs/restore-etcd.md")
	stays("a deletion")

	line := w.rebuild(nil)[image.Image]
	if line.Outcome != v1alpha1.RebuildRefused || !strings.Contains(line.Message, "pvc-1") || !strings.Contains(line.Message, "adopted-1") {
		t.Fatalf("while a record claims the image: %+v", line)
	}
	if !w.Gone("adopted-1") {
		t.Fatal("two records have the image")
	}
	old := w.Volume("pvc-1")
	old.Finalizers = nil
	csitest.Must(t, w.API.Update(t.Context(), old))
	csitest.Must(t, client.IgnoreNotFound(w.API.Delete(t.Context(), old)))
	if line := w.rebuild(nil)[image.Image]; line.Outcome != v1alpha1.RebuildDone || line.Volume != "adopted-1" {
		t.Fatalf("once the old record is gone: %+v", line)
	}
	holder := w.Volume("adopted-1").Spec.Replicas[0]
	if _, err := w.Publish("adopted-1", holder); err != nil || !w.Holds(holder, now) {
		t.Errorf("attached: %v; what was written is there: %v", err, w.Holds(holder, now))
	}
}

// TestAVolumeThatWasInUseIsNotFormattedByAnOlderRecord: the record is from before the filesystem was made.
func TestAVolumeThatWasInUseIsNotFormattedByAnOlderRecord(t *testing.T) {
	w := newWorld(t)
	v, _, _ := w.provenSince("pvc-1")
	if line := w.rebuild(nil)[volumes.ImageOf(v).Image]; line.Outcome != v1alpha1.RebuildDone {
		t.Fatalf("%+v", line)
	}
	if a := w.Volume("pvc-1").Spec.Adoption; a == nil || a.FormatIfBlank || a.Rebuilt {
		t.Errorf("adoption %+v", a)
	}
}

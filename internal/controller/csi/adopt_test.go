package csi_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

var outside = volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "csi-vol-1"}

func adoption(volume string) volumes.Adoption {
	return volumes.Adoption{
		ImageRef: outside, Volume: volume, Request: "uid-of-" + volume, Mode: v1alpha1.CacheModeWriteback, Claim: "shop/data",
		Cache: func(int64) int64 { return 64 << 20 },
	}
}

func (w *world) outside() {
	w.images.seen[outside] = volumes.Inspection{SizeBytes: 3 * gib, Layout: v1alpha1.ImageLayout{Features: []string{"layering", "exclusive-lock"}}}
}

func TestAnAdoptedImageIsAVolumeLikeOthers(t *testing.T) {
	w := newWorld(t)
	w.outside()
	dry := adoption("a")
	dry.DryRun = true
	v, err := w.locked.Adopt(t.Context(), dry)
	must(t, err)
	if !w.gone("a") || v.Spec.SizeBytes != 3*gib || len(w.images.marks) > 0 {
		t.Errorf("a dry run: %+v, marks %v", v.Spec, w.images.marks)
	}
	for range 2 { // the second call may come because the first one's answer was lost
		_, err = w.locked.Adopt(t.Context(), adoption("a"))
		must(t, err)
	}
	v = w.volume("a")
	if v.Status.Phase != v1alpha1.VolumeReady || v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.Epoch != 0 || v.Status.ImageID == "" ||
		v.Spec.Image != "csi-vol-1" || v.Spec.SizeBytes != 3*gib || v.Spec.Group != "g1" || v.Spec.Adoption == nil || v.Spec.Adoption.FormatIfBlank ||
		v.Annotations[v1alpha1.AnnotationClaim] != "shop/data" || w.images.marks[outside] != "a" {
		t.Errorf("record %+v %+v, marks %v", v.Spec, v.Status, w.images.marks)
	}
	_, err = w.publish("a", v.Spec.Replicas[0])
	must(t, err)
	must(t, w.unpublish("a", v.Spec.Replicas[0]))
}

// TestAReleasedImageComesBackInItsOldEpoch: hosts may still know the former volume.
func TestAReleasedImageComesBackInItsOldEpoch(t *testing.T) {
	w := newWorld(t)
	w.outside()
	seen := w.images.seen[outside]
	seen.Released = volumes.Note{Volume: "former", Epoch: 7}
	w.images.seen[outside] = seen
	_, err := w.locked.Adopt(t.Context(), adoption("a"))
	must(t, err)
	v := w.volume("a")
	if v.Status.Epoch != 7 || len(v.Status.Outdated) != 2 {
		t.Errorf("status %+v", v.Status)
	}
	_, err = w.publish("a", v.Spec.Replicas[0])
	must(t, err)
	if now := w.volume("a"); now.Status.Epoch != 8 || len(now.Status.Outdated) != 0 || w.fleet.Replicas() != 2 {
		t.Errorf("status %+v, %d replicas", now.Status, w.fleet.Replicas())
	}
}

func TestWhatCannotBeAdoptedStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*world)
		code    codes.Code
		words   []string
	}{
		"not there": {func(w *world) { delete(w.images.seen, outside) }, codes.NotFound, []string{"csi-vol-1"}},
		"unfit": {func(w *world) {
			w.images.seen[outside] = volumes.Inspection{SizeBytes: gib, Refusals: []string{"it is in use", "it is encrypted"}}
		}, codes.FailedPrecondition, []string{"it is in use; and it is encrypted"}},
		"adopted already": {func(w *world) {
			_, err := w.locked.Adopt(context.Background(), adoption("first"))
			must(w.t, err)
		}, codes.FailedPrecondition, []string{"volume first has it"}},
		"taken just now": {func(w *world) { w.images.marks[outside] = "other" }, codes.FailedPrecondition, []string{"volume other's"}},
		"of which a host has a replica": {func(w *world) {
			g := &v1alpha1.NodeGroup{}
			must(w.t, w.api.Get(context.Background(), client.ObjectKey{Name: "g1"}, g))
			g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "former", Pool: "rbd", Image: "csi-vol-1"}}
			must(w.t, w.api.Status().Update(context.Background(), g))
		}, codes.FailedPrecondition, []string{"node n2", "volume former"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.outside()
			tc.prepare(w)
			marked := w.images.marks[outside]
			_, err := w.locked.Adopt(t.Context(), adoption("a"))
			wants(t, err, tc.code, tc.words...)
			if !w.gone("a") || w.images.marks[outside] != marked {
				t.Errorf("it has left something: record gone %t, marks %v", w.gone("a"), w.images.marks)
			}
		})
	}
}

func TestAnAdoptionGoesOnAfterACrash(t *testing.T) {
	for name, marked := range map[string]bool{"before the mark": false, "after the mark": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.outside()
			_, err := w.locked.Adopt(t.Context(), adoption("a"))
			must(t, err)
			v := w.volume("a")
			place := v.Spec.Port
			v.Status = v1alpha1.CacheVolumeStatus{}
			must(t, w.api.Status().Update(t.Context(), v))
			if !marked {
				delete(w.images.marks, outside)
			}
			w.restart()
			wants(t, w.delete("a"), codes.FailedPrecondition, "not the driver's")
			_, err = w.publish("a", "n1")
			wants(t, err, codes.FailedPrecondition, "not created yet")
			_, err = w.locked.Adopt(t.Context(), adoption("a"))
			must(t, err)
			if now := w.volume("a"); now.Status.Phase != v1alpha1.VolumeReady || now.Spec.Port != place || w.images.marks[outside] != "a" {
				t.Errorf("record %+v %+v", now.Spec, now.Status)
			}
		})
	}
}

// markedOnly is what an adoption leaves that marks the image of a former volume and then cannot write
// the record.
func (w *world) markedOnly(volume string) {
	w.t.Helper()
	w.outside()
	seen := w.images.seen[outside]
	seen.Released = volumes.Note{Volume: "former", Epoch: 7}
	w.images.seen[outside] = seen
	_, err := w.locked.Adopt(context.Background(), adoption(volume))
	must(w.t, err)
	v := w.volume(volume)
	v.Status = v1alpha1.CacheVolumeStatus{}
	must(w.t, w.api.Status().Update(context.Background(), v))
	w.restart()
}

// TestAnAdoptionKeepsTheOldEpochAfterACrash: the mark has replaced the note of the former volume.
func TestAnAdoptionKeepsTheOldEpochAfterACrash(t *testing.T) {
	w := newWorld(t)
	w.markedOnly("a")
	_, err := w.locked.Adopt(t.Context(), adoption("a"))
	must(t, err)
	if v := w.volume("a"); v.Status.Epoch != 7 || len(v.Status.Outdated) != 2 {
		t.Errorf("epoch %d, outdated %v", v.Status.Epoch, v.Status.Outdated)
	}
}

// TestAnAdoptionThatIsRefusedAfterTheMarkLeavesNone: somebody has mapped the image meanwhile.
func TestAnAdoptionThatIsRefusedAfterTheMarkLeavesNone(t *testing.T) {
	w := newWorld(t)
	w.markedOnly("a")
	free := w.images.seen[outside]
	used := free
	used.Refusals = []string{"it is in use"}
	w.images.seen[outside] = used
	_, err := w.locked.Adopt(t.Context(), adoption("a"))
	wants(t, err, codes.FailedPrecondition, "it is in use")
	if !w.gone("a") || w.images.marks[outside] != "" {
		t.Fatalf("it has left something: record gone %t, marks %v", w.gone("a"), w.images.marks)
	}
	free.Released = w.images.seen[outside].Released
	w.images.seen[outside] = free
	_, err = w.locked.Adopt(t.Context(), adoption("b"))
	must(t, err)
	if v := w.volume("b"); v.Status.Epoch != 7 {
		t.Errorf("epoch %d", v.Status.Epoch)
	}
}

func TestAnAdoptionIsWithdrawnOnlyWhileItIsNotFinished(t *testing.T) {
	w := newWorld(t)
	w.markedOnly("a")
	for _, asks := range [][2]string{{"a", "another"}, {"none", "uid-of-none"}} {
		must(t, w.locked.Withdraw(t.Context(), asks[0], asks[1]))
	}
	if w.gone("a") || w.images.marks[outside] != "a" {
		t.Fatal("it was taken back for another request")
	}
	must(t, w.locked.Withdraw(t.Context(), "a", "uid-of-a"))
	if !w.gone("a") || w.images.marks[outside] != "" || w.book.Has("g1") {
		t.Fatalf("it has left something: record gone %t, marks %v, a place %t", w.gone("a"), w.images.marks, w.book.Has("g1"))
	}
	_, err := w.locked.Adopt(t.Context(), adoption("b"))
	must(t, err)
	must(t, w.locked.Withdraw(t.Context(), "b", "uid-of-b"))
	if v := w.volume("b"); v.Status.Epoch != 7 || w.images.marks[outside] != "b" {
		t.Errorf("a finished adoption was taken back: %+v, marks %v", v.Status, w.images.marks)
	}
}

// TestARefusedAdoptionIsNotOverWhileItsRecordStays: nobody would remove the record afterwards.
func TestARefusedAdoptionIsNotOverWhileItsRecordStays(t *testing.T) {
	for name, failing := range map[string]interceptor.Funcs{
		"the deletion fails": {Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return errSlow }},
		"the removal fails": {Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return errSlow
		}, Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return errSlow }},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.markedOnly("a")
			below, ok := w.api.(client.WithWatch)
			if !ok {
				t.Fatal("the client cannot be wrapped")
			}
			w.cached = interceptor.NewClient(below, failing)
			w.restart()
			delete(w.images.seen, outside)
			_, err := w.locked.Adopt(t.Context(), adoption("a"))
			if w.gone("a") {
				t.Fatal("the test changes nothing")
			}
			wants(t, err, codes.Unavailable)
		})
	}
}

var errSlow = errors.New("the API server is slow")

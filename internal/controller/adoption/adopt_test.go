package adoption_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

var outside = volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "csi-vol-1"}

func adoption(volume string) volumes.Adoption {
	return volumes.Adoption{
		ImageRef: outside, Volume: volume, Request: "uid-of-" + volume, Mode: v1alpha1.CacheModeWriteback, Claim: "shop/data",
		Cache: func(int64) int64 { return 64 << 20 },
	}
}

func (w *world) outside() {
	w.Images.Seen[outside] = volumes.Inspection{SizeBytes: 3 * csitest.GiB,
		Layout: v1alpha1.ImageLayout{Features: []string{"layering", "exclusive-lock"}}}
}

func TestAnAdoptedImageIsAVolumeLikeOthers(t *testing.T) {
	w := newWorld(t)
	w.outside()
	dry := adoption("a")
	dry.DryRun = true
	v, err := w.Locked.Adopt(t.Context(), dry)
	csitest.Must(t, err)
	if !w.Gone("a") || v.Spec.SizeBytes != 3*csitest.GiB || len(w.Images.Marks) > 0 {
		t.Errorf("a dry run: %+v, marks %v", v.Spec, w.Images.Marks)
	}
	for range 2 { // the second call may come because the first one's answer was lost
		_, err = w.Locked.Adopt(t.Context(), adoption("a"))
		csitest.Must(t, err)
	}
	v = w.Volume("a")
	if v.Status.Phase != v1alpha1.VolumeReady || v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.Epoch != 0 ||
		v.Status.ImageID == "" ||
		v.Spec.Image != "csi-vol-1" || v.Spec.SizeBytes != 3*csitest.GiB || v.Spec.Group != "g1" || v.Spec.Adoption == nil ||
		v.Spec.Adoption.FormatIfBlank ||
		v.Annotations[v1alpha1.AnnotationClaim] != "shop/data" || w.Images.Marks[outside] != "a" {
		t.Errorf("record %+v %+v, marks %v", v.Spec, v.Status, w.Images.Marks)
	}
	_, err = w.Publish("a", v.Spec.Replicas[0])
	csitest.Must(t, err)
	csitest.Must(t, w.Unpublish("a", v.Spec.Replicas[0]))
}

// TestAReleasedImageComesBackInItsOldEpoch: hosts may still know the former volume.
func TestAReleasedImageComesBackInItsOldEpoch(t *testing.T) {
	w := newWorld(t)
	w.outside()
	seen := w.Images.Seen[outside]
	seen.Released = volumes.Note{Volume: "former", Epoch: 7}
	w.Images.Seen[outside] = seen
	_, err := w.Locked.Adopt(t.Context(), adoption("a"))
	csitest.Must(t, err)
	v := w.Volume("a")
	if v.Status.Epoch != 7 || len(v.Status.Outdated) != 2 {
		t.Errorf("status %+v", v.Status)
	}
	_, err = w.Publish("a", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if now := w.Volume("a"); now.Status.Epoch != 8 || len(now.Status.Outdated) != 0 || w.Fleet.Replicas() != 2 {
		t.Errorf("status %+v, %d replicas", now.Status, w.Fleet.Replicas())
	}
}

func TestWhatCannotBeAdoptedStaysAsItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(*world)
		code    codes.Code
		words   []string
	}{
		"not there": {func(w *world) { delete(w.Images.Seen, outside) }, codes.NotFound, []string{"csi-vol-1"}},
		"unfit": {func(w *world) {
			w.Images.Seen[outside] = volumes.Inspection{SizeBytes: csitest.GiB, Refusals: []string{"it is in use", "it is encrypted"}}
		}, codes.FailedPrecondition, []string{"it is in use; and it is encrypted"}},
		"adopted already": {func(w *world) {
			_, err := w.Locked.Adopt(context.Background(), adoption("first"))
			csitest.Must(w.T, err)
		}, codes.FailedPrecondition, []string{"volume first has it"}},
		"taken just now": {func(w *world) { w.Images.Marks[outside] = "other" }, codes.FailedPrecondition, []string{"volume other's"}},
		"of which a host has a replica": {func(w *world) {
			g := &v1alpha1.NodeGroup{}
			csitest.Must(w.T, w.API.Get(context.Background(), client.ObjectKey{Name: "g1"}, g))
			g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "former", Pool: "rbd", Image: "csi-vol-1"}}
			csitest.Must(w.T, w.API.Status().Update(context.Background(), g))
		}, codes.FailedPrecondition, []string{"node n2", "volume former"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.outside()
			tc.prepare(w)
			marked := w.Images.Marks[outside]
			_, err := w.Locked.Adopt(t.Context(), adoption("a"))
			csitest.Wants(t, err, tc.code, tc.words...)
			if !w.Gone("a") || w.Images.Marks[outside] != marked {
				t.Errorf("it has left something: record gone %t, marks %v", w.Gone("a"), w.Images.Marks)
			}
		})
	}
}

// TestAnImageThatTheEngineDoesNotServeIsNotAdoptedForIt: no node could have the volume.
func TestAnImageThatTheEngineDoesNotServeIsNotAdoptedForIt(t *testing.T) {
	w := newWorld(t)
	w.outside()
	seen := w.Images.Seen[outside]
	seen.SizeBytes = 16 << 40
	w.Images.Seen[outside] = seen
	a := adoption("a")
	a.Engine = v1alpha1.CacheEngineLog
	_, err := w.Locked.Adopt(t.Context(), a)
	csitest.Wants(t, err, codes.FailedPrecondition, "16 TiB", "writecache")
	if !w.Gone("a") || w.Images.Marks[outside] != "" {
		t.Errorf("marks %v", w.Images.Marks)
	}
	_, err = w.Locked.Adopt(t.Context(), adoption("a"))
	csitest.Must(t, err)
}

func TestAnAdoptionGoesOnAfterACrash(t *testing.T) {
	for name, marked := range map[string]bool{"before the mark": false, "after the mark": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.outside()
			_, err := w.Locked.Adopt(t.Context(), adoption("a"))
			csitest.Must(t, err)
			v := w.Volume("a")
			place := v.Spec.Port
			v.Status = v1alpha1.CacheVolumeStatus{}
			csitest.Must(t, w.API.Status().Update(t.Context(), v))
			if !marked {
				delete(w.Images.Marks, outside)
			}
			w.Restart()
			csitest.Wants(t, w.Delete("a"), codes.FailedPrecondition, "not the driver's")
			_, err = w.Publish("a", "n1")
			csitest.Wants(t, err, codes.FailedPrecondition, "not created yet")
			_, err = w.Locked.Adopt(t.Context(), adoption("a"))
			csitest.Must(t, err)
			if now := w.Volume("a"); now.Status.Phase != v1alpha1.VolumeReady || now.Spec.Port != place || w.Images.Marks[outside] != "a" {
				t.Errorf("record %+v %+v", now.Spec, now.Status)
			}
		})
	}
}

// markedOnly is what an adoption leaves that marks the image of a former volume and then cannot write
// the record.
func (w *world) markedOnly(volume string) {
	w.T.Helper()
	w.outside()
	seen := w.Images.Seen[outside]
	seen.Released = volumes.Note{Volume: "former", Epoch: 7}
	w.Images.Seen[outside] = seen
	_, err := w.Locked.Adopt(context.Background(), adoption(volume))
	csitest.Must(w.T, err)
	v := w.Volume(volume)
	v.Status = v1alpha1.CacheVolumeStatus{}
	csitest.Must(w.T, w.API.Status().Update(context.Background(), v))
	w.Restart()
}

// TestAnAdoptionKeepsTheOldEpochAfterACrash: the mark has replaced the note of the former volume.
func TestAnAdoptionKeepsTheOldEpochAfterACrash(t *testing.T) {
	w := newWorld(t)
	w.markedOnly("a")
	_, err := w.Locked.Adopt(t.Context(), adoption("a"))
	csitest.Must(t, err)
	if v := w.Volume("a"); v.Status.Epoch != 7 || len(v.Status.Outdated) != 2 {
		t.Errorf("epoch %d, outdated %v", v.Status.Epoch, v.Status.Outdated)
	}
}

// TestAnAdoptionThatIsRefusedAfterTheMarkLeavesNone: somebody has mapped the image meanwhile.
func TestAnAdoptionThatIsRefusedAfterTheMarkLeavesNone(t *testing.T) {
	w := newWorld(t)
	w.markedOnly("a")
	free := w.Images.Seen[outside]
	used := free
	used.Refusals = []string{"it is in use"}
	w.Images.Seen[outside] = used
	_, err := w.Locked.Adopt(t.Context(), adoption("a"))
	csitest.Wants(t, err, codes.FailedPrecondition, "it is in use")
	if !w.Gone("a") || w.Images.Marks[outside] != "" {
		t.Fatalf("it has left something: record gone %t, marks %v", w.Gone("a"), w.Images.Marks)
	}
	free.Released = w.Images.Seen[outside].Released
	w.Images.Seen[outside] = free
	_, err = w.Locked.Adopt(t.Context(), adoption("b"))
	csitest.Must(t, err)
	if v := w.Volume("b"); v.Status.Epoch != 7 {
		t.Errorf("epoch %d", v.Status.Epoch)
	}
}

func TestAnAdoptionIsWithdrawnOnlyWhileItIsNotFinished(t *testing.T) {
	w := newWorld(t)
	w.markedOnly("a")
	for _, asks := range [][2]string{{"a", "another"}, {"none", "uid-of-none"}} {
		csitest.Must(t, w.Locked.Withdraw(t.Context(), asks[0], asks[1]))
	}
	if w.Gone("a") || w.Images.Marks[outside] != "a" {
		t.Fatal("it was taken back for another request")
	}
	csitest.Must(t, w.Locked.Withdraw(t.Context(), "a", "uid-of-a"))
	if !w.Gone("a") || w.Images.Marks[outside] != "" || w.Book.Has("g1") {
		t.Fatalf("it has left something: record gone %t, marks %v, a place %t", w.Gone("a"), w.Images.Marks, w.Book.Has("g1"))
	}
	_, err := w.Locked.Adopt(t.Context(), adoption("b"))
	csitest.Must(t, err)
	csitest.Must(t, w.Locked.Withdraw(t.Context(), "b", "uid-of-b"))
	if v := w.Volume("b"); v.Status.Epoch != 7 || w.Images.Marks[outside] != "b" {
		t.Errorf("a finished adoption was taken back: %+v, marks %v", v.Status, w.Images.Marks)
	}
}

// TestARefusedAdoptionIsNotOverWhileItsRecordStays: nobody would remove the record afterwards.
func TestARefusedAdoptionIsNotOverWhileItsRecordStays(t *testing.T) {
	for name, failing := range map[string]interceptor.Funcs{
		"the deletion fails": {Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			return csitest.ErrSlow
		}},
		"the removal fails": {Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return csitest.ErrSlow
		}, Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error {
			return csitest.ErrSlow
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.markedOnly("a")
			below, ok := w.API.(client.WithWatch)
			if !ok {
				t.Fatal("the client cannot be wrapped")
			}
			w.Cached = interceptor.NewClient(below, failing)
			w.Restart()
			delete(w.Images.Seen, outside)
			_, err := w.Locked.Adopt(t.Context(), adoption("a"))
			if w.Gone("a") {
				t.Fatal("the test changes nothing")
			}
			csitest.Wants(t, err, codes.Unavailable)
		})
	}
}

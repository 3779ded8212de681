package rebuild_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/rebuild"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// rebuild asks for the lost records of the pool, and returns the results by image.
func (w *world) rebuild(change func(*v1alpha1.CacheAdoptionSpec)) map[string]v1alpha1.RebuiltVolume {
	w.T.Helper()
	a := &v1alpha1.CacheAdoption{ObjectMeta: metav1.ObjectMeta{Name: "adopt-1", UID: "request"}}
	a.Spec = v1alpha1.CacheAdoptionSpec{ClusterID: "ceph", Pool: "rbd", Rebuild: &v1alpha1.Rebuild{}}
	if change != nil {
		change(&a.Spec)
	}
	out := map[string]v1alpha1.RebuiltVolume{}
	for {
		status, err := rebuild.New(rebuild.Config{
			Live: w.API, Images: w.Images, Hosts: w.Hosts(), Records: w.Locked, Kubernetes: "us",
			Ask: 5 * time.Second, PageSize: 2, Parallel: 2,
		}).Run(w.T.Context(), a)
		csitest.Must(w.T, err)
		for _, line := range status.Images {
			out[line.Image] = line
		}
		if a.Spec.Rebuild.After = status.Next; status.Next == "" {
			return out
		}
	}
}

func dryRun(s *v1alpha1.CacheAdoptionSpec) { s.DryRun = true }

// wipe removes every record, as a new etcd does, and starts csi-controller again.
func (w *world) wipe() {
	w.T.Helper()
	all := &v1alpha1.CacheVolumeList{}
	csitest.Must(w.T, w.API.List(context.Background(), all))
	for i := range all.Items {
		all.Items[i].Finalizers = nil
		csitest.Must(w.T, w.API.Update(context.Background(), &all.Items[i]))
		csitest.Must(w.T, client.IgnoreNotFound(w.API.Delete(context.Background(), &all.Items[i])))
	}
	w.Restart()
}

// used makes a volume that was attached once, and of which its hosts have so many dirty bytes in equal copies.
func (w *world) used(id string, dirty int64) *v1alpha1.CacheVolume {
	w.T.Helper()
	v := w.Create(id)
	_, err := w.Publish(id, v.Spec.Replicas[0])
	csitest.Must(w.T, err)
	v = w.Volume(id)
	w.linked(v)
	for _, node := range v.Spec.Replicas {
		w.Host(node).Write(csitest.Ref(v), dirty)
	}
	return v
}

func (w *world) cut(v *v1alpha1.CacheVolume) {
	for n, node := range v.Spec.Replicas {
		w.Host(node).See(csitest.Ref(v), v.Spec.Replicas[1-n], escache.LinkStandAlone, escache.DiskUnknown)
	}
}

// TestAHostThatLostItsPowerKeepsNoRecordFromBeingMade: its client still holds the image's lock. It may also be
// cut off from Ceph, so it is fenced.
func TestAHostThatLostItsPowerKeepsNoRecordFromBeingMade(t *testing.T) {
	const cutOff = "10.0.0.77:0/9"
	w := newWorld(t)
	v := w.used("pvc-1", csitest.DirtyBytes)
	image := volumes.ImageOf(v)
	w.wipe()
	w.Images.Left = map[volumes.ImageRef][]string{image: {cutOff}}
	if line := w.rebuild(dryRun)[image.Image]; line.Outcome != v1alpha1.RebuildProposed || !strings.Contains(line.Message, cutOff) {
		t.Errorf("proposed: %+v", line)
	}
	if len(w.Images.Fenced) > 0 {
		t.Fatalf("a dry run has fenced %v", w.Images.Fenced)
	}
	w.Images.FailFence = volumes.ErrUnavailable
	if line := w.rebuild(nil)[image.Image]; line.Outcome != v1alpha1.RebuildWaits {
		t.Errorf("nobody knows whether it is fenced: %+v", line)
	}
	w.Images.FailFence = nil
	w.Images.Open = map[volumes.ImageRef][]string{image: {cutOff}} // who holds the lock counts as who has it open
	if line := w.rebuild(nil)[image.Image]; line.Outcome != v1alpha1.RebuildDone {
		t.Fatalf("%+v", line)
	}
	s := w.Volume("pvc-1").Status
	if !slices.Equal(w.Images.Fenced, []string{cutOff}) || len(s.Fenced) != 1 || s.Fenced[0].Address != cutOff || s.Fenced[0].Epoch != 1 {
		t.Errorf("fenced %v, on record %+v", w.Images.Fenced, s.Fenced)
	}
	_, err := w.Publish("pvc-1", v.Spec.Replicas[1])
	csitest.Must(t, err)
}

func TestLostRecordsAreMadeAnew(t *testing.T) {
	w := newWorld(t)
	clean, dirty := w.used("pvc-clean", 0), w.used("pvc-dirty", csitest.DirtyBytes)
	w.Create("pvc-new")
	w.wipe()
	for image, line := range w.rebuild(dryRun) {
		if line.Outcome != v1alpha1.RebuildProposed {
			t.Errorf("%s: %+v", image, line)
		}
	}
	if !w.Gone("pvc-clean") || !w.Gone("pvc-dirty") || w.Images.Notes[volumes.ImageOf(dirty)].Epoch != 1 || w.Book.Has("g1") {
		t.Fatal("a dry run has changed something")
	}
	found := w.rebuild(nil)
	if len(found) != 3 {
		t.Errorf("found %+v", found)
	}
	for image, line := range found {
		if line.Outcome != v1alpha1.RebuildDone {
			t.Errorf("%s: %+v", image, line)
		}
	}
	for image, line := range w.rebuild(nil) {
		if line.Outcome != v1alpha1.RebuildRecorded {
			t.Errorf("again, %s: %+v", image, line)
		}
	}
	for _, before := range []*v1alpha1.CacheVolume{clean, dirty} {
		v := w.Volume(before.Name)
		if v.Spec.Group != "g1" || v.Spec.Port != before.Spec.Port || v.Status.Epoch != 2 || v.Status.AttachedNode != "" ||
			v.Status.ImageID == "" ||
			v.Status.Phase != v1alpha1.VolumeReady || len(v.Status.Outdated) != 0 || v.Status.HostID(before.Spec.Replicas[0]) == "" {
			t.Errorf("record %+v %+v", v.Spec, v.Status)
		}
		note := w.Images.Notes[volumes.ImageOf(v)]
		if note.Epoch != 2 || note.Seen == nil || *note.Seen != 1 || note.Spec.Adoption == nil {
			t.Errorf("note %+v", note)
		}
	}
	if w.Volume("pvc-clean").Status.Authority != v1alpha1.AuthorityCeph ||
		w.Volume("pvc-dirty").Status.Authority != v1alpha1.AuthorityCache {
		t.Error("the truth is not where it is")
	}
	// The dirty one is taken over; on a third host it is written back first. Nothing is dropped.
	_, err := w.Publish("pvc-dirty", dirty.Spec.Replicas[1])
	csitest.Must(t, err)
	if !w.Holds(dirty.Spec.Replicas[1], dirty) {
		t.Error("what was dirty is gone")
	}
	_, err = w.Publish("pvc-clean", csitest.Other(clean))
	csitest.Must(t, err)
	w.Create("pvc-later")
	if port := w.Volume("pvc-later").Spec.Port; port == clean.Spec.Port || port == dirty.Spec.Port {
		t.Errorf("a new volume has port %d, which a rebuilt one has", port)
	}
}

// TestALostRecordLostAgain: a rebuild leaves all behind that the next one needs.
func TestALostRecordLostAgain(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", csitest.DirtyBytes)
	for epoch := int64(2); epoch < 5; epoch++ {
		w.wipe()
		if line := w.rebuild(nil)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildDone || line.Epoch != epoch ||
			line.Authority != v1alpha1.AuthorityCache {
			t.Fatalf("%+v", line)
		}
	}
}

// TestTheRecordBeforeARebuildIsOfNoUse: another csi-controller still has it.
func TestTheRecordBeforeARebuildIsOfNoUse(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", 0)
	csitest.Must(t, w.Unpublish("pvc-1", v.Spec.Replicas[0]))
	before := w.Volume("pvc-1")
	w.wipe()
	w.rebuild(nil)
	w.SetBack(before)
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.FailedPrecondition, "older than")
}

func TestARebuildTakesNothingFromOthers(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", 0)
	image := volumes.ImageOf(v)
	w.wipe()
	w.Images.Foreign[image] = true
	if line := w.rebuild(nil)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildRefused ||
		!strings.Contains(line.Message, "--from-kubernetes-cluster them") {
		t.Errorf("of another cluster: %+v", line)
	}
	taking := func(s *v1alpha1.CacheAdoptionSpec) { s.Rebuild.FromKubernetesCluster = "them" }
	w.Images.Open[image] = []string{"10.0.0.1:0/1"}
	if line := w.rebuild(taking)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildWaits || !w.Gone("pvc-1") {
		t.Errorf("in use: %+v", line)
	}
	delete(w.Images.Open, image)
	if line := w.rebuild(taking)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildDone || w.Images.Foreign[image] {
		t.Errorf("free: %+v", line)
	}
}

// TestAClientThatComesMeanwhileStopsARebuild: the other cluster's csi-controller had let it in.
func TestAClientThatComesMeanwhileStopsARebuild(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", 0)
	w.wipe()
	late := &lateClient{Images: w.Images, image: volumes.ImageOf(v)}
	found, err := rebuild.New(rebuild.Config{
		Live: w.API, Images: late, Hosts: w.Hosts(), Records: w.Locked, Kubernetes: "us",
		Ask: 5 * time.Second, PageSize: 9, Parallel: 1,
	}).Run(t.Context(), &v1alpha1.CacheAdoption{Spec: v1alpha1.CacheAdoptionSpec{ClusterID: "ceph", Pool: "rbd",
		Rebuild: &v1alpha1.Rebuild{}}})
	csitest.Must(t, err)
	if line := found.Images[0]; line.Outcome != v1alpha1.RebuildRefused || !strings.Contains(line.Message, "10.0.0.9") {
		t.Errorf("%+v", line)
	}
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.FailedPrecondition, "not created yet")
}

type lateClient struct {
	*csitest.Images

	image volumes.ImageRef
}

func (l *lateClient) Remains(ctx context.Context, image volumes.ImageRef) (volumes.Remains, error) {
	out, err := l.Images.Remains(ctx, image)
	l.Open[l.image] = []string{"10.0.0.9:0/1"}
	return out, err
}

// TestARebuildGoesOnAfterACrash: between record and mark, and between mark and status.
func TestARebuildGoesOnAfterACrash(t *testing.T) {
	for name, marked := range map[string]bool{"before the mark": false, "after the mark": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.used("pvc-1", csitest.DirtyBytes)
			w.wipe()
			note := w.Images.Notes[volumes.ImageOf(v)]
			w.rebuild(nil)
			half := w.Volume("pvc-1")
			half.Status = v1alpha1.CacheVolumeStatus{}
			csitest.Must(t, w.API.Status().Update(t.Context(), half))
			if !marked {
				w.Images.Notes[volumes.ImageOf(v)] = note
			}
			w.Restart()
			_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
			csitest.Wants(t, err, codes.FailedPrecondition, "not created yet")
			_, err = w.Service.CreateVolume(t.Context(), csitest.CreateRequest("pvc-1"))
			csitest.Wants(t, err, codes.Aborted, "re-created")
			csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition)
			if line := w.rebuild(nil)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildDone {
				t.Fatalf("%+v", line)
			}
			if now := w.Volume("pvc-1"); now.Status.Epoch < 2 || now.Status.Authority != v1alpha1.AuthorityCache ||
				len(now.Status.Outdated) > 0 {
				t.Errorf("status %+v", now.Status)
			}
		})
	}
}

// TestARebuildThatIsWithdrawnLeavesTheMark: without it the image would be nobody's, and its data is in caches.
func TestARebuildThatIsWithdrawnLeavesTheMark(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", csitest.DirtyBytes)
	w.wipe()
	w.rebuild(nil)
	half := w.Volume("pvc-1")
	half.Status = v1alpha1.CacheVolumeStatus{}
	csitest.Must(t, w.API.Status().Update(t.Context(), half))
	csitest.Must(t, w.Locked.Withdraw(t.Context(), "pvc-1", "request"))
	if image := volumes.ImageOf(v); !w.Gone("pvc-1") || w.Images.Marks[image] != "pvc-1" || w.Images.Notes[image].Volume != "pvc-1" {
		t.Fatalf("record gone %t, marks %v", w.Gone("pvc-1"), w.Images.Marks)
	}
	if line := w.rebuild(nil)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildDone {
		t.Errorf("%+v", line)
	}
}

// TestAVolumeWhoseCopiesDifferIsStopped until a person, or DRBD, has decided.
func TestAVolumeWhoseCopiesDifferIsStopped(t *testing.T) {
	for name, tc := range map[string]struct {
		decide   func(w *world, v *v1alpha1.CacheVolume) func(*v1alpha1.CacheAdoptionSpec)
		outdated int
	}{
		"by a person": {func(_ *world, v *v1alpha1.CacheVolume) func(*v1alpha1.CacheAdoptionSpec) {
			return func(s *v1alpha1.CacheAdoptionSpec) { s.Image, s.Rebuild.UseCopy = v.Spec.Image, v.Spec.Replicas[1] }
		}, 1},
		"by DRBD": {func(w *world, v *v1alpha1.CacheVolume) func(*v1alpha1.CacheAdoptionSpec) {
			for n, node := range v.Spec.Replicas {
				w.Host(node).See(csitest.Ref(v), v.Spec.Replicas[1-n], escache.LinkConnected, escache.DiskUpToDate)
			}
			return nil
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.used("pvc-1", csitest.DirtyBytes)
			w.cut(v)
			w.wipe()
			for range 2 {
				if line := w.rebuild(nil)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildConflict ||
					!strings.Contains(line.Message, "StandAlone") {
					t.Fatalf("%+v", line)
				}
			}
			now := w.Volume("pvc-1")
			if c := meta.FindStatusCondition(now.Status.Conditions,
				v1alpha1.ConditionCopyProven); now.Status.Phase != v1alpha1.VolumeConflict ||
				c == nil || !strings.Contains(c.Message, v.Spec.Replicas[0]+": epoch 1") {
				t.Errorf("status %+v", now.Status)
			}
			for _, node := range []string{"n1", "n2", "n3"} {
				_, err := w.Publish("pvc-1", node)
				csitest.Wants(t, err, codes.FailedPrecondition, "nothing proves which copy", "StandAlone")
			}
			csitest.Wants(t, w.Delete("pvc-1"), codes.FailedPrecondition, "nothing proves")
			_, err := w.Service.CreateVolume(t.Context(), csitest.CreateRequest("pvc-1"))
			csitest.Wants(t, err, codes.Aborted)
			_, err = w.Locked.Discard(t.Context(), &v1alpha1.CacheDiscard{Spec: v1alpha1.CacheDiscardSpec{Volume: "pvc-1",
				Epoch: now.Status.Epoch}})
			csitest.Wants(t, err, codes.FailedPrecondition, "--use-copy")
			for _, node := range v.Spec.Replicas {
				if !w.Holds(node, v) {
					t.Errorf("the copy on %s is gone", node)
				}
			}
			if line := w.rebuild(tc.decide(w, v))[v.Spec.Image]; line.Outcome != v1alpha1.RebuildDone {
				t.Fatalf("%+v", line)
			}
			if now = w.Volume("pvc-1"); now.Status.Phase != v1alpha1.VolumeReady || len(now.Status.Outdated) != tc.outdated ||
				meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionCopyProven) != nil {
				t.Errorf("status %+v", now.Status)
			}
			if _, err := w.Publish("pvc-1", v.Spec.Replicas[1]); err != nil || !w.Holds(v.Spec.Replicas[1], v) {
				t.Errorf("it cannot be used: %v", err)
			}
		})
	}
}

// TestASilentHostIsWaitedForOrGivenUp: with its copy chosen the volume is as one whose host was lost, and
// the loss is accepted as for any other.
func TestASilentHostIsWaitedForOrGivenUp(t *testing.T) {
	w := newWorld(t)
	v := w.used("pvc-1", csitest.DirtyBytes)
	lost := v.Spec.Replicas[0]
	w.cut(v)
	w.Host(lost).Stop()
	w.wipe()
	if line := w.rebuild(nil)[v.Spec.Image]; line.Outcome != v1alpha1.RebuildWaits ||
		!strings.Contains(line.Message, "node "+lost+" does not answer") {
		t.Fatalf("%+v", line)
	}
	if !w.Gone("pvc-1") {
		t.Fatal("there is a record")
	}
	w.rebuild(func(s *v1alpha1.CacheAdoptionSpec) { s.Image, s.Rebuild.UseCopy = v.Spec.Image, lost })
	now := w.Volume("pvc-1")
	if !slices.Equal(now.Status.Outdated, []string{v.Spec.Replicas[1]}) {
		t.Fatalf("status %+v", now.Status)
	}
	_, err := w.Publish("pvc-1", v.Spec.Replicas[1])
	csitest.Wants(t, err, codes.Unavailable, "has to be written")
	_, err = w.Locked.Discard(t.Context(), &v1alpha1.CacheDiscard{Spec: v1alpha1.CacheDiscardSpec{Volume: "pvc-1",
		Epoch: now.Status.Epoch}})
	csitest.Must(t, err)
	_, err = w.Publish("pvc-1", v.Spec.Replicas[1])
	csitest.Must(t, err)
}

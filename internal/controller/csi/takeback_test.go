package csi_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

var (
	errNoMonitor = fmt.Errorf("the monitors are gone: %w", volumes.ErrUnavailable)
	errFull      = fmt.Errorf("the pool is full: %w", volumes.ErrNoRoom)
	errIO        = errors.New("failure of Ceph: input/output error")
)

// without asks for the volume b while Ceph makes no image, because of that error.
func (w *world) without(cause error, r *csi.CreateVolumeRequest) error {
	w.T.Helper()
	w.Images.Creating = func(volumes.ImageSpec) error { return cause }
	_, err := w.Service.CreateVolume(w.T.Context(), r)
	w.Images.Creating = nil
	return err
}

// requests are those for the volume b: an empty one, and the two kinds of copies.
func (w *world) requests() map[string]*csi.CreateVolumeRequest {
	w.T.Helper()
	w.Create("a")
	s, err := w.Service.CreateSnapshot(w.T.Context(), &csi.CreateSnapshotRequest{Name: "s", SourceVolumeId: "a"})
	csitest.Must(w.T, err)
	return map[string]*csi.CreateVolumeRequest{
		"empty": csitest.CreateRequest("b"), "of a snapshot": csitest.FromSnapshot("b", s.GetSnapshot().GetSnapshotId()),
		"of another volume": csitest.FromVolume("b", "a"),
	}
}

// nothingLeft fails unless of the volume b nothing is left, and of its source all that was there.
func (w *world) nothingLeft() {
	w.T.Helper()
	if _, there := w.Images.Sizes[csitest.ImageNamed("b")]; there || !w.Gone("b") || len(w.Images.Taken) != 1 {
		w.T.Errorf("left: image %v, record gone %v, snapshots %v", there, w.Gone("b"), w.Images.Taken)
	}
	for _, u := range w.Book.Usage() {
		if u.Volumes != 1 {
			w.T.Errorf("reserved: %+v", u)
		}
	}
}

// TestACallThatEndsForGoodLeavesNothing: external-provisioner gives the volume up then, and deletes none that it was
// refused.
func TestACallThatEndsForGoodLeavesNothing(t *testing.T) {
	for name, tc := range map[string]struct {
		before, cause error
		code          codes.Code
	}{
		"the first one, by an I/O error":    {nil, errIO, codes.Internal},
		"a repeated one, by an I/O error":   {errNoMonitor, errIO, codes.Internal},
		"the first one, by a full pool":     {nil, errFull, codes.ResourceExhausted},
		"a repeated one, by a full pool":    {errNoMonitor, errFull, codes.ResourceExhausted},
		"a repeated one, by a wrong layout": {errNoMonitor, fmt.Errorf("16 parents: %w", volumes.ErrInvalid), codes.InvalidArgument},
		"a repeated one, by a key that may not make it": {errNoMonitor, fmt.Errorf("the key: %w", volumes.ErrRefused),
			codes.FailedPrecondition},
	} {
		for _, kind := range []string{"empty", "of a snapshot", "of another volume"} {
			t.Run(kind+", "+name, func(t *testing.T) {
				w := newWorld(t)
				request := w.requests()[kind]
				if tc.before != nil {
					csitest.Wants(t, w.without(tc.before, request), volumes.Code(tc.before))
				}
				csitest.Wants(t, w.without(tc.cause, request), tc.code)
				w.nothingLeft()
			})
		}
	}
}

// TestARequestThatFailsLaterLeavesNothing: it does not come as far as the image.
func TestARequestThatFailsLaterLeavesNothing(t *testing.T) {
	w := newWorld(t)
	request := w.requests()["of a snapshot"]
	csitest.Wants(t, w.without(errNoMonitor, request), codes.Unavailable)
	request.Parameters["clusterID"] = "other"
	_, err := w.Service.CreateVolume(t.Context(), request)
	csitest.Wants(t, err, codes.InvalidArgument, "clusterID other")
	w.nothingLeft()
}

// TestWhatIsLeftOfAFirstCallIsNotForgotten: the image of a copy is made, and no note can be written to it.
func TestWhatIsLeftOfAFirstCallIsNotForgotten(t *testing.T) {
	for kind, create := range copies {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			request := create(t, w)
			w.Images.Noting = errIO
			_, err := w.Service.CreateVolume(t.Context(), request)
			csitest.Wants(t, err, codes.Unavailable, "input/output error")
			if w.Gone("b") {
				t.Fatal("nobody knows of the image any more")
			}
			_, err = w.Service.CreateVolume(t.Context(), request)
			csitest.Wants(t, err, codes.Internal, "input/output error")
			if _, there := w.Images.Sizes[csitest.ImageNamed("b")]; there || !w.Gone("b") {
				t.Errorf("left: image %v, record gone %v", there, w.Gone("b"))
			}
		})
	}
}

// TestACorrectedStorageClass has other parameters than the one by which the volume was begun.
func TestACorrectedStorageClass(t *testing.T) {
	for name, begin := range map[string]func(w *world){
		"before there was an image": func(w *world) {
			csitest.Wants(w.T, w.without(errNoMonitor, csitest.CreateRequest("b")), codes.Unavailable)
		},
		"when the empty image was there": func(w *world) {
			w.Create("b")
			w.BeforeItWasMade("b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			begin(w)
			corrected := csitest.CreateRequest("b")
			corrected.Parameters["pool"] = "fast"
			_, err := w.Service.CreateVolume(t.Context(), corrected)
			csitest.Wants(t, err, codes.AlreadyExists, "pool is rbd, not fast") // and nothing is left, so that the next call makes it
			_, err = w.Service.CreateVolume(t.Context(), corrected)
			csitest.Must(t, err)
			image := volumes.ImageRef{ClusterID: "ceph", Pool: "fast", Image: "escache-b"}
			if _, there := w.Images.Sizes[image]; !there || len(w.Images.Sizes) != 1 {
				t.Errorf("images %v", w.Images.Sizes)
			}
		})
	}
}

// TestAnotherGroupAfterAFullPool: with WaitForFirstConsumer external-provisioner has the pod scheduled again, and the
// scheduler may choose another group.
func TestAnotherGroupAfterAFullPool(t *testing.T) {
	w := newWorld(t, "n4", "n5", "n6")
	group := &v1alpha1.NodeGroup{}
	group.Name, group.Spec.Nodes = "g2", []string{"n4", "n5", "n6"}
	csitest.Must(t, w.API.Create(t.Context(), group))
	w.PollBoth()
	in := func(group string) *csi.CreateVolumeRequest {
		r := csitest.CreateRequest("b")
		topology := []*csi.Topology{{Segments: map[string]string{v1alpha1.TopologyKey: group}}}
		r.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: topology, Preferred: topology}
		return r
	}
	csitest.Wants(t, w.without(errFull, in("g1")), codes.ResourceExhausted)
	_, err := w.Service.CreateVolume(t.Context(), in("g2"))
	csitest.Must(t, err)
	if g := w.Volume("b").Spec.Group; g != "g2" {
		t.Errorf("it is in %s", g)
	}
}

// TestASourceWithTooManySnapshotsLeavesNothing of its clone.
func TestASourceWithTooManySnapshotsLeavesNothing(t *testing.T) {
	w := newWorld(t)
	request := w.requests()["of another volume"]
	w.Images.Refusing = func(context.Context, volumes.SnapshotRef) error {
		return fmt.Errorf("500 snapshots: %w", volumes.ErrNoRoom)
	}
	_, err := w.Service.CreateVolume(t.Context(), request)
	csitest.Wants(t, err, codes.ResourceExhausted, "500 snapshots")
	w.nothingLeft()
}

// TestWhatMayHaveDataIsNotTakenBack, whoever asks for another volume of that name.
func TestWhatMayHaveDataIsNotTakenBack(t *testing.T) {
	image := csitest.ImageNamed("b")
	begun := func(w *world) {
		csitest.Wants(w.T, w.without(errNoMonitor, csitest.CreateRequest("b")), codes.Unavailable)
	}
	for name, tc := range map[string]struct {
		prepare func(w *world)
		code    codes.Code
		words   []string
	}{
		"a volume that is made": {func(w *world) { w.Create("b") }, codes.AlreadyExists, []string{"pool is rbd"}},
		"a volume whose record was set back": {func(w *world) {
			node := w.Create("b").Spec.Replicas[0]
			_, err := w.Publish("b", node)
			csitest.Must(w.T, err)
			csitest.Must(w.T, w.Unpublish("b", node))
			w.BeforeItWasMade("b")
		}, codes.AlreadyExists, []string{"pool is rbd"}},
		"a volume that adopts an image": {func(w *world) {
			begun(w)
			v := w.Volume("b")
			v.Spec.Adoption = &v1alpha1.Adoption{}
			csitest.Must(w.T, w.API.Update(w.T.Context(), v))
			w.Images.Sizes[image] = csitest.GiB
		}, codes.AlreadyExists, []string{"pool is rbd"}},
		"a complete copy": {func(w *world) {
			w.Create("a")
			csitest.Must(w.T, w.Clone("b", "a"))
			w.BeforeItWasMade("b")
		}, codes.AlreadyExists, []string{"pool is rbd"}},
		"an image that was adopted before the record was lost": {func(w *world) {
			begun(w)
			w.Images.Sizes[image] = csitest.GiB
			w.Images.Notes[image] = volumes.Note{Volume: "b", Complete: true, Spec: v1alpha1.CacheVolumeSpec{Adoption: &v1alpha1.Adoption{}}}
		}, codes.AlreadyExists, []string{"pool is rbd"}},
		"an image that does not say whose it is": {func(w *world) {
			begun(w)
			w.Images.Sizes[image] = csitest.GiB
		}, codes.Unavailable, []string{"pool is rbd", "could not be taken back", "does not name the volume"}},
		"an image that somebody uses": {func(w *world) {
			w.Create("b")
			w.BeforeItWasMade("b")
			w.Images.Open[image] = []string{"192.0.2.9:0/1"}
		}, codes.Unavailable, []string{"could not be taken back", "192.0.2.9"}},
		"an image that Ceph does not show": {func(w *world) {
			w.Create("b")
			w.BeforeItWasMade("b")
			w.Images.Reading = errNoMonitor
		}, codes.Unavailable, []string{"pool is rbd", "could not be taken back", "monitors"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tc.prepare(w)
			other := csitest.CreateRequest("b")
			other.Parameters["pool"] = "fast"
			for range 2 {
				_, err := w.Service.CreateVolume(t.Context(), other)
				csitest.Wants(t, err, tc.code, tc.words...)
			}
			if _, there := w.Images.Sizes[image]; !there || w.Gone("b") {
				t.Errorf("left: image %v, record gone %v", there, w.Gone("b"))
			}
		})
	}
}

// deaf is an API server that does not answer when a finalizer is removed.
type deaf struct{ client.Client }

func (deaf) Patch(context.Context, client.Object, client.Patch, ...client.PatchOption) error {
	return context.DeadlineExceeded
}

func (deaf) Update(context.Context, client.Object, ...client.UpdateOption) error {
	return context.DeadlineExceeded
}

// TestATakeBackThatWasInterruptedGoesOn: nobody calls DeleteVolume for such a record.
func TestATakeBackThatWasInterruptedGoesOn(t *testing.T) {
	for name, before := range map[string]error{"of the first call": nil, "of a repeated call": errNoMonitor} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if before != nil {
				csitest.Wants(t, w.without(before, csitest.CreateRequest("b")), codes.Unavailable)
			}
			w.Cached = deaf{w.API}
			w.Restart()
			csitest.Wants(t, w.without(fmt.Errorf("16 parents: %w", volumes.ErrInvalid), csitest.CreateRequest("b")),
				codes.Unavailable, "16 parents", "could not be taken back")
			w.Cached = w.API
			w.Restart()
			_, err := w.Service.CreateVolume(t.Context(), csitest.CreateRequest("b"))
			csitest.Wants(t, err, codes.Aborted, "being deleted")
			w.Empty()
			w.Create("b")
		})
	}
}

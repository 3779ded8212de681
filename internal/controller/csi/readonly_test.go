package csi_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/readonly"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

func readers() *csi.VolumeCapability {
	c := capability()
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	return c
}

func readOnly(name, snapshot string) *csi.CreateVolumeRequest {
	r := fromSnapshot(name, snapshot)
	r.VolumeCapabilities = []*csi.VolumeCapability{readers()}
	return r
}

func (w *world) createReadOnly(name, snapshot string) error {
	_, err := w.service.CreateVolume(context.Background(), readOnly(name, snapshot))
	return err
}

func (w *world) publishReadOnly(id, node string) error {
	_, err := w.service.ControllerPublishVolume(context.Background(), &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: node, VolumeCapability: readers(),
	})
	return err
}

// readOnly is the record, nil if there is none.
func (w *world) readOnly(id string) *v1alpha1.ReadOnlyVolume {
	w.t.Helper()
	v := &v1alpha1.ReadOnlyVolume{}
	if err := w.api.Get(context.Background(), client.ObjectKey{Name: id}, v); err != nil {
		must(w.t, client.IgnoreNotFound(err))
		return nil
	}
	return v
}

// imagesNow are the names of all images, sorted.
func (w *world) imagesNow() (names []string) {
	for ref := range w.images.images {
		names = append(names, ref.Image)
	}
	slices.Sort(names)
	return names
}

// TestManyNodesReadASnapshotAtOnce follows a read-only volume from its creation to its end.
func TestManyNodesReadASnapshotAtOnce(t *testing.T) {
	w := snapshotted(t)
	made, err := w.service.CreateVolume(t.Context(), readOnly("r", "s"))
	must(t, err)
	again, err := w.service.CreateVolume(t.Context(), readOnly("r", "s"))
	must(t, err)
	for _, v := range []*csi.Volume{made.GetVolume(), again.GetVolume()} {
		if v.GetVolumeId() != "r" || v.GetCapacityBytes() != gib || v.GetContentSource().GetSnapshot().GetSnapshotId() != "s" ||
			len(v.GetAccessibleTopology()) != 1 || v.GetAccessibleTopology()[0].GetSegments()[v1alpha1.TopologyKey] != "g1" {
			t.Errorf("got %v", v)
		}
	}
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) {
		t.Errorf("an image is made before a node wants it: %q", got)
	}
	nodes := []string{"n1", "n2", "n9"}
	for _, node := range append(nodes, nodes...) {
		must(t, w.publishReadOnly("r", node))
	}
	v := w.readOnly("r")
	for _, node := range nodes {
		ref := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.ImageOn(node)}
		if w.images.clones[ref] != "escache-s" || w.images.marks[ref] != "r" || !w.images.notes[ref].ReadOnly || v.CopyOn(node).ImageID == "" {
			t.Errorf("%s has image %q of %q, %+v", node, ref.Image, w.images.clones[ref], v.CopyOn(node))
		}
	}
	if got := w.imagesNow(); len(got) != 4 || w.images.made != 4 {
		t.Errorf("%d images were made: %q", w.images.made, got)
	}
	listed, err := w.service.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	must(t, err)
	if all := listed.GetEntries(); len(all) != 2 || !slices.Equal(all[1].GetStatus().GetPublishedNodeIds(), nodes) {
		t.Errorf("listed %v", all)
	}
	wants(t, w.delete("r"), codes.FailedPrecondition, "n1, n2, n9", "detached first")
	wants(t, w.unsnap("s"), codes.FailedPrecondition, "[r]", "delete its claim")

	// A node that still has it mapped keeps it, and stops no other one.
	held := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.ImageOn("n1")}
	w.images.open[held] = []string{"192.0.2.1:0/1"}
	wants(t, w.unpublish("r", "n1"), codes.FailedPrecondition, "192.0.2.1:0/1")
	must(t, w.unpublish("r", "n2"))
	must(t, w.publishReadOnly("r", "n3"))
	delete(w.images.open, held)
	for range 2 {
		must(t, w.unpublish("r", "n1"))
		must(t, w.unpublish("r", "")) // everywhere
	}
	for range 2 {
		must(t, w.delete("r"))
	}
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) || w.readOnly("r") != nil || len(w.images.fenced) > 0 {
		t.Errorf("left: %q, %v, fenced %v", got, w.readOnly("r"), w.images.fenced)
	}
	must(t, w.unsnap("s"))
}

func TestWhatAReadOnlyVolumeCannotDoIsRefused(t *testing.T) {
	w := snapshotted(t)
	must(t, w.createReadOnly("r", "s"))
	if v := w.readOnly("r"); v.Status.Summary.Size != v1alpha1.HumanBytes(v.Spec.SizeBytes) {
		t.Errorf("kubectl get shows the size %q of a volume that no node has yet", v.Status.Summary.Size)
	}
	create := func(change func(*csi.CreateVolumeRequest)) error {
		r := readOnly("other", "s")
		change(r)
		_, err := w.service.CreateVolume(t.Context(), r)
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		word string
	}{
		"no source": {create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = nil }), codes.InvalidArgument, "name a VolumeSnapshot"},
		"a volume as the source": {create(func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
				Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "a"},
			}}
		}), codes.InvalidArgument, "take a VolumeSnapshot"},
		"writers beside readers": {create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = append(r.VolumeCapabilities, capability())
		}), codes.InvalidArgument, "a claim of its own"},
		"mounted for writing": {create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities[0].GetMount().MountFlags = []string{"rw"}
		}), codes.InvalidArgument, "always mounted read-only"},
		"a snapshot that is not there": {w.createReadOnly("other", "none"), codes.NotFound, "none"},
		"another snapshot":             {w.createReadOnly("r", "none"), codes.AlreadyExists, "of snapshot s"},
		"the name of a volume":         {w.createReadOnly("a", "s"), codes.AlreadyExists, "can be written to"},
		"a group that is not there": {create(func(r *csi.CreateVolumeRequest) {
			r.Parameters["nodeGroups"] = "g7"
		}), codes.ResourceExhausted, "NodeGroup"},
		"its name for a volume": {second(w.service.CreateVolume(t.Context(), createRequest("r"))), codes.AlreadyExists, "is read-only"},
		"attached for writing":  {second(w.publish("r", "n1")), codes.FailedPrecondition, "ReadOnlyMany only"},
		"a volume for readers":  {w.publishReadOnly("a", "n1"), codes.InvalidArgument, "made from a snapshot"},
		"an unknown node":       {w.publishReadOnly("r", "nowhere"), codes.NotFound, "nowhere"},
		"an unknown volume":     {w.publishReadOnly("none", "n1"), codes.NotFound, "none"},
		"a snapshot of it":      {second(w.snap("s2", "r")), codes.FailedPrecondition, "is read-only"},
		"growth": {second(w.service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "r", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * gib},
		})), codes.FailedPrecondition, "cannot grow"},
		"another cache": {second(w.service.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
			VolumeId: "r", MutableParameters: map[string]string{"cacheMode": "writethrough"},
		})), codes.FailedPrecondition, "no cache"},
	} {
		t.Run(name, func(t *testing.T) { wants(t, c.err, c.code, c.word) })
	}
	confirm := func(c *csi.VolumeCapability) string {
		r, err := w.service.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: "r", VolumeCapabilities: []*csi.VolumeCapability{c},
		})
		must(t, err)
		return r.GetMessage()
	}
	if confirm(readers()) != "" || !strings.Contains(confirm(capability()), "nobody can write") {
		t.Errorf("readers: %q; writers: %q", confirm(readers()), confirm(capability()))
	}
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) {
		t.Errorf("images: %q", got)
	}
}

func second[T any](_ T, err error) error { return err }

// TestAReadOnlyVolumeGoesOnAfterACrash has csi-controller die before each of its writes to the API server,
// and the call repeated to another one.
func TestAReadOnlyVolumeGoesOnAfterACrash(t *testing.T) {
	for writes := 0; ; writes++ {
		w := snapshotted(t)
		died := w.mortal(writes)
		for n, step := range []func() error{
			func() error { return w.createReadOnly("r", "s") },
			func() error { return w.publishReadOnly("r", "n1") },
			func() error { return w.publishReadOnly("r", "n2") },
			func() error { return w.unpublish("r", "n1") },
			func() error { return w.unpublish("r", "n2") },
			func() error { return w.delete("r") },
		} {
			err := step()
			for range 2 {
				if err == nil || !*died {
					break
				}
				w.cached = w.api
				w.restart()
				err = step()
			}
			if err != nil {
				t.Fatalf("after %d writes, step %d: %v", writes, n, err)
			}
			if v := w.readOnly("r"); v != nil {
				w.imagesAreOnRecord(v)
			}
		}
		if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) || w.readOnly("r") != nil {
			t.Fatalf("after %d writes: left %q, %v", writes, got, w.readOnly("r"))
		}
		if !*died {
			if writes < 9 {
				t.Errorf("it makes only %d writes", writes)
			}
			return
		}
	}
}

// imagesAreOnRecord fails if there is an image whose node is not on record, or the other way round.
func (w *world) imagesAreOnRecord(v *v1alpha1.ReadOnlyVolume) {
	w.t.Helper()
	want := []string{"escache-a"}
	for _, c := range v.Status.Copies {
		want = append(want, v.ImageOn(c.Node))
		if c.ImageID == "" {
			w.t.Errorf("node %s was given an image that may be half made", c.Node)
		}
	}
	slices.Sort(want)
	if got := w.imagesNow(); !slices.Equal(got, want) {
		w.t.Errorf("images %q, on record %q", got, want)
	}
}

// TestNodesWaitForTheirTurnWithAReadOnlyVolume: the pods of a DaemonSet start and end on all nodes at once.
func TestNodesWaitForTheirTurnWithAReadOnlyVolume(t *testing.T) {
	w := snapshotted(t)
	must(t, w.createReadOnly("r", "s"))
	w.images.creating = func(volumes.ImageSpec) error { time.Sleep(10 * time.Millisecond); return nil }
	nodes := []string{"n1", "n2", "n3", "n9"}
	onAll := func(call func(node string) error) {
		t.Helper()
		errs := make([]error, len(nodes))
		var all sync.WaitGroup
		for i, node := range nodes {
			all.Go(func() { errs[i] = call(node) })
		}
		all.Wait()
		must(t, errors.Join(errs...))
	}
	onAll(func(node string) error { return w.publishReadOnly("r", node) })
	if got := readonly.NodesOf(w.readOnly("r")); len(got) != len(nodes) {
		t.Errorf("only %q have it", got)
	}
	// Some nodes lose it while others get it again.
	onAll(func(node string) error {
		if node > "n2" {
			return w.publishReadOnly("r", node)
		}
		return w.unpublish("r", node)
	})
	onAll(func(node string) error { return w.unpublish("r", node) })
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) {
		t.Errorf("left: %q", got)
	}
}

// TestAReadOnlyVolumeWaitsOnlyForSoLong, and only for what takes a moment.
func TestAReadOnlyVolumeWaitsOnlyForSoLong(t *testing.T) {
	w := snapshotted(t)
	must(t, w.createReadOnly("r", "s"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.images.creating = func(volumes.ImageSpec) error { close(begun); <-goOn; return nil }
	var first error
	var all sync.WaitGroup
	all.Go(func() { first = w.publishReadOnly("r", "n1") })
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := w.service.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: "r", NodeId: "n2", VolumeCapability: readers(),
	})
	wants(t, err, codes.Aborted, "the attachment of a read-only volume")
	_, err = w.service.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "r", NodeId: "n2"})
	wants(t, err, codes.Aborted, "the attachment of a read-only volume")
	if ctx.Err() != nil {
		t.Error("the whole time of the call was waited for")
	}
	wants(t, w.delete("r"), codes.Aborted)
	close(goOn)
	all.Wait()
	must(t, first)
}

// TestANodeThatIsGivenUpLosesItsReadOnlyVolume though its kernel still has the image mapped. A node that lives is
// waited for.
func TestANodeThatIsGivenUpLosesItsReadOnlyVolume(t *testing.T) {
	const client = "192.0.2.1:0/1"
	for name, c := range map[string]struct {
		giveUp func(*world)
		from   string
	}{
		"tainted":                         {func(w *world) { w.taint("n1") }, "n1"},
		"deleted":                         {func(w *world) { must(t, w.api.Delete(t.Context(), w.fleet.Node("n1"))) }, "n1"},
		"tainted, and taken from all":     {func(w *world) { w.taint("n1") }, ""},
		"tainted, and only this one's is": {func(w *world) { w.taint("n1"); w.taint("n2") }, "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := snapshotted(t)
			must(t, w.createReadOnly("r", "s"))
			must(t, w.publishReadOnly("r", "n1"))
			must(t, w.publishReadOnly("r", "n2"))
			image := func(node string) volumes.ImageRef {
				return volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: w.readOnly("r").ImageOn(node)}
			}
			w.images.open[image("n1")] = []string{client}
			if c.from == "n1" {
				w.images.open[image("n2")] = []string{"192.0.2.2:0/2"}
			}
			wants(t, w.unpublish("r", "n1"), codes.FailedPrecondition, client)
			if len(w.images.fenced) > 0 {
				t.Errorf("a node that lives is fenced: %q", w.images.fenced)
			}
			c.giveUp(w)
			w.images.failFence = volumes.ErrUnavailable
			wants(t, w.unpublish("r", c.from), codes.Unavailable, client)
			w.images.failFence = nil
			for range 2 {
				must(t, w.unpublish("r", c.from))
			}
			if !slices.Equal(w.images.fenced, []string{client}) {
				t.Errorf("fenced are %q", w.images.fenced)
			}
			if _, there := w.images.images[image("n1")]; there || w.readOnly("r").CopyOn("n1") != nil {
				t.Errorf("the node still has it: %+v", w.readOnly("r").Status)
			}
			if (w.readOnly("r").CopyOn("n2") != nil) != (c.from == "n1") {
				t.Errorf("the other node: %+v", w.readOnly("r").Status)
			}
		})
	}
}

// TestAnImageThatWasHalfMadeIsMadeAgain, and one that is there before the record is somebody else's.
func TestAnImageThatWasHalfMadeIsMadeAgain(t *testing.T) {
	w := snapshotted(t)
	must(t, w.createReadOnly("r", "s"))
	w.images.creating = func(volumes.ImageSpec) error { return fmt.Errorf("no answer: %w", volumes.ErrUnavailable) }
	wants(t, w.publishReadOnly("r", "n1"), codes.Unavailable)
	w.images.creating = nil
	ref := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: w.readOnly("r").ImageOn("n1")}
	w.images.images[ref] = 1 // half made
	must(t, w.publishReadOnly("r", "n1"))
	if w.images.images[ref] != gib || w.images.clones[ref] != "escache-s" {
		t.Errorf("the image has %d bytes, of snapshot %q", w.images.images[ref], w.images.clones[ref])
	}
	for node, note := range map[string]volumes.Note{
		"n2": {},
		"n3": {Version: volumes.NoteVersion, Volume: "r"}, // of a volume that can be written to
		"n9": {Version: volumes.NoteVersion, Volume: "other", ReadOnly: true},
	} {
		ref.Image = w.readOnly("r").ImageOn(node)
		w.images.images[ref], w.images.notes[ref] = 2, note
		for range 2 {
			wants(t, w.publishReadOnly("r", node), codes.FailedPrecondition, "somebody's data", ref.Image, "rename or remove it")
		}
		must(t, w.unpublish("r", node))
		if w.images.images[ref] != 2 {
			t.Errorf("somebody else's image %s is gone", ref.Image)
		}
		if got := readonly.NodesOf(w.readOnly("r")); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("on record are %q", got)
		}
	}
}

// TestAnImageOfThisReadOnlyVolumeThatIsNotOnRecordIsMadeAgain, but not another Kubernetes cluster's.
func TestAnImageOfThisReadOnlyVolumeThatIsNotOnRecordIsMadeAgain(t *testing.T) {
	w := snapshotted(t)
	must(t, w.createReadOnly("r", "s"))
	ref := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: w.readOnly("r").ImageOn("n1")}
	w.images.images[ref], w.images.notes[ref] = 1, volumes.Note{Version: volumes.NoteVersion, Volume: "r", ReadOnly: true}
	w.images.foreign[ref] = true
	for range 2 {
		wants(t, w.publishReadOnly("r", "n1"), codes.FailedPrecondition, "another Kubernetes cluster")
	}
	must(t, w.unpublish("r", "n1"))
	if w.images.images[ref] != 1 {
		t.Error("another Kubernetes cluster's image is gone")
	}
	delete(w.images.foreign, ref)
	must(t, w.publishReadOnly("r", "n1"))
	if w.images.images[ref] != gib || w.images.clones[ref] != "escache-s" {
		t.Errorf("the image has %d bytes, of snapshot %q", w.images.images[ref], w.images.clones[ref])
	}
}

// TestVolumesAreListedToTheLastReadOnlyOne: the page that ends with the last volume with a cache leads on. The
// API server of these tests takes no limit for its own pages.
func TestVolumesAreListedToTheLastReadOnlyOne(t *testing.T) {
	w := snapshotted(t)
	list := func(most int32) (pages [][]string) {
		for token := ""; ; {
			page, err := w.service.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: most, StartingToken: token})
			must(t, err)
			var ids []string
			for _, e := range page.GetEntries() {
				ids = append(ids, e.GetVolume().GetVolumeId())
			}
			pages = append(pages, ids)
			if token = page.GetNextToken(); token == "" {
				return pages
			}
		}
	}
	if got := list(1); !reflect.DeepEqual(got, [][]string{{"a"}}) {
		t.Errorf("without read-only volumes: %q", got)
	}
	must(t, w.createReadOnly("r1", "s"))
	must(t, w.createReadOnly("r2", "s"))
	for most, want := range map[int32][][]string{0: {{"a", "r1", "r2"}}, 1: {{"a"}, {"r1", "r2"}}, 3: {{"a", "r1", "r2"}}} {
		if got := list(most); !reflect.DeepEqual(got, want) {
			t.Errorf("at most %d: %q", most, got)
		}
	}
}

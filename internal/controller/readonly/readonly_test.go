package readonly_test

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
	"github.com/escache/escache-csi/test/csitest"
)

func readers() *csi.VolumeCapability {
	c := csitest.Capability()
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	return c
}

func readOnly(name, snapshot string) *csi.CreateVolumeRequest {
	r := csitest.FromSnapshot(name, snapshot)
	r.VolumeCapabilities = []*csi.VolumeCapability{readers()}
	return r
}

func (w *world) createReadOnly(name, snapshot string) error {
	_, err := w.Service.CreateVolume(context.Background(), readOnly(name, snapshot))
	return err
}

func (w *world) publishReadOnly(id, node string) error {
	_, err := w.Service.ControllerPublishVolume(context.Background(), &csi.ControllerPublishVolumeRequest{
		VolumeId: id, NodeId: node, VolumeCapability: readers(),
	})
	return err
}

// readOnly is the record, nil if there is none.
func (w *world) readOnly(id string) *v1alpha1.ReadOnlyVolume {
	w.T.Helper()
	v := &v1alpha1.ReadOnlyVolume{}
	if err := w.API.Get(context.Background(), client.ObjectKey{Name: id}, v); err != nil {
		csitest.Must(w.T, client.IgnoreNotFound(err))
		return nil
	}
	return v
}

// imagesNow are the names of all images, sorted.
func (w *world) imagesNow() (names []string) {
	for ref := range w.Images.Sizes {
		names = append(names, ref.Image)
	}
	slices.Sort(names)
	return names
}

// TestManyNodesReadASnapshotAtOnce follows a read-only volume from its creation to its end.
func TestManyNodesReadASnapshotAtOnce(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	made, err := w.Service.CreateVolume(t.Context(), readOnly("r", "s"))
	csitest.Must(t, err)
	again, err := w.Service.CreateVolume(t.Context(), readOnly("r", "s"))
	csitest.Must(t, err)
	for _, v := range []*csi.Volume{made.GetVolume(), again.GetVolume()} {
		if v.GetVolumeId() != "r" || v.GetCapacityBytes() != csitest.GiB || v.GetContentSource().GetSnapshot().GetSnapshotId() != "s" ||
			len(v.GetAccessibleTopology()) != 1 || v.GetAccessibleTopology()[0].GetSegments()[v1alpha1.TopologyKey] != "g1" {
			t.Errorf("got %v", v)
		}
	}
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) {
		t.Errorf("an image is made before a node wants it: %q", got)
	}
	nodes := []string{"n1", "n2", "n9"}
	for _, node := range append(nodes, nodes...) {
		csitest.Must(t, w.publishReadOnly("r", node))
	}
	v := w.readOnly("r")
	for _, node := range nodes {
		ref := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.ImageOn(node)}
		if w.Images.Clones[ref] != "escache-s" || w.Images.Marks[ref] != "r" || !w.Images.Notes[ref].ReadOnly ||
			v.CopyOn(node).ImageID == "" {
			t.Errorf("%s has image %q of %q, %+v", node, ref.Image, w.Images.Clones[ref], v.CopyOn(node))
		}
	}
	if got := w.imagesNow(); len(got) != 4 || w.Images.Made != 4 {
		t.Errorf("%d images were made: %q", w.Images.Made, got)
	}
	listed, err := w.Service.ListVolumes(t.Context(), &csi.ListVolumesRequest{})
	csitest.Must(t, err)
	if all := listed.GetEntries(); len(all) != 2 || !slices.Equal(all[1].GetStatus().GetPublishedNodeIds(), nodes) {
		t.Errorf("listed %v", all)
	}
	csitest.Wants(t, w.Delete("r"), codes.FailedPrecondition, "n1, n2, n9", "detached first")
	csitest.Wants(t, w.Unsnap("s"), codes.FailedPrecondition, "[r]", "delete its claim")

	// A node that still has it mapped keeps it, and stops no other one.
	held := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.ImageOn("n1")}
	w.Images.Open[held] = []string{"192.0.2.1:0/1"}
	csitest.Wants(t, w.Unpublish("r", "n1"), codes.FailedPrecondition, "192.0.2.1:0/1")
	csitest.Must(t, w.Unpublish("r", "n2"))
	csitest.Must(t, w.publishReadOnly("r", "n3"))
	delete(w.Images.Open, held)
	for range 2 {
		csitest.Must(t, w.Unpublish("r", "n1"))
		csitest.Must(t, w.Unpublish("r", "")) // everywhere
	}
	for range 2 {
		csitest.Must(t, w.Delete("r"))
	}
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) || w.readOnly("r") != nil || len(w.Images.Fenced) > 0 {
		t.Errorf("left: %q, %v, fenced %v", got, w.readOnly("r"), w.Images.Fenced)
	}
	csitest.Must(t, w.Unsnap("s"))
}

func TestWhatAReadOnlyVolumeCannotDoIsRefused(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	csitest.Must(t, w.createReadOnly("r", "s"))
	if v := w.readOnly("r"); v.Status.Summary.Size != v1alpha1.HumanBytes(v.Spec.SizeBytes) {
		t.Errorf("kubectl get shows the size %q of a volume that no node has yet", v.Status.Summary.Size)
	}
	create := func(change func(*csi.CreateVolumeRequest)) error {
		r := readOnly("other", "s")
		change(r)
		_, err := w.Service.CreateVolume(t.Context(), r)
		return err
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		word string
	}{
		"no source": {create(func(r *csi.CreateVolumeRequest) { r.VolumeContentSource = nil }), codes.InvalidArgument,
			"name a VolumeSnapshot"},
		"a volume as the source": {create(func(r *csi.CreateVolumeRequest) {
			r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
				Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: "a"},
			}}
		}), codes.InvalidArgument, "take a VolumeSnapshot"},
		"writers beside readers": {create(func(r *csi.CreateVolumeRequest) {
			r.VolumeCapabilities = append(r.VolumeCapabilities, csitest.Capability())
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
		"its name for a volume": {second(w.Service.CreateVolume(t.Context(), csitest.CreateRequest("r"))), codes.AlreadyExists,
			"is read-only"},
		"attached for writing": {second(w.Publish("r", "n1")), codes.FailedPrecondition, "ReadOnlyMany only"},
		"a volume for readers": {w.publishReadOnly("a", "n1"), codes.InvalidArgument, "made from a snapshot"},
		"an unknown node":      {w.publishReadOnly("r", "nowhere"), codes.NotFound, "nowhere"},
		"an unknown volume":    {w.publishReadOnly("none", "n1"), codes.NotFound, "none"},
		"a snapshot of it":     {second(w.Snap("s2", "r")), codes.FailedPrecondition, "is read-only"},
		"growth": {second(w.Service.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: "r", CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * csitest.GiB},
		})), codes.FailedPrecondition, "cannot grow"},
		"another cache": {second(w.Service.ControllerModifyVolume(t.Context(), &csi.ControllerModifyVolumeRequest{
			VolumeId: "r", MutableParameters: map[string]string{"cacheMode": "writethrough"},
		})), codes.FailedPrecondition, "no cache"},
	} {
		t.Run(name, func(t *testing.T) { csitest.Wants(t, c.err, c.code, c.word) })
	}
	confirm := func(c *csi.VolumeCapability) string {
		r, err := w.Service.ValidateVolumeCapabilities(t.Context(), &csi.ValidateVolumeCapabilitiesRequest{
			VolumeId: "r", VolumeCapabilities: []*csi.VolumeCapability{c},
		})
		csitest.Must(t, err)
		return r.GetMessage()
	}
	if confirm(readers()) != "" || !strings.Contains(confirm(csitest.Capability()), "nobody can write") {
		t.Errorf("readers: %q; writers: %q", confirm(readers()), confirm(csitest.Capability()))
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
		w := newWorld(t)
		w.Snapshotted()
		died := w.Mortal(writes)
		for n, step := range []func() error{
			func() error { return w.createReadOnly("r", "s") },
			func() error { return w.publishReadOnly("r", "n1") },
			func() error { return w.publishReadOnly("r", "n2") },
			func() error { return w.Unpublish("r", "n1") },
			func() error { return w.Unpublish("r", "n2") },
			func() error { return w.Delete("r") },
		} {
			err := step()
			for range 2 {
				if err == nil || !*died {
					break
				}
				w.Cached = w.API
				w.Restart()
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
	w.T.Helper()
	want := []string{"escache-a"}
	for _, c := range v.Status.Copies {
		want = append(want, v.ImageOn(c.Node))
		if c.ImageID == "" {
			w.T.Errorf("node %s was given an image that may be half made", c.Node)
		}
	}
	slices.Sort(want)
	if got := w.imagesNow(); !slices.Equal(got, want) {
		w.T.Errorf("images %q, on record %q", got, want)
	}
}

// TestNodesWaitForTheirTurnWithAReadOnlyVolume: the pods of a DaemonSet start and end on all nodes at once.
func TestNodesWaitForTheirTurnWithAReadOnlyVolume(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	csitest.Must(t, w.createReadOnly("r", "s"))
	w.Images.Creating = func(volumes.ImageSpec) error { time.Sleep(10 * time.Millisecond); return nil }
	nodes := []string{"n1", "n2", "n3", "n9"}
	onAll := func(call func(node string) error) {
		t.Helper()
		errs := make([]error, len(nodes))
		var all sync.WaitGroup
		for i, node := range nodes {
			all.Go(func() { errs[i] = call(node) })
		}
		all.Wait()
		csitest.Must(t, errors.Join(errs...))
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
		return w.Unpublish("r", node)
	})
	onAll(func(node string) error { return w.Unpublish("r", node) })
	if got := w.imagesNow(); !slices.Equal(got, []string{"escache-a"}) {
		t.Errorf("left: %q", got)
	}
}

// TestAReadOnlyVolumeWaitsOnlyForSoLong, and only for what takes a moment.
func TestAReadOnlyVolumeWaitsOnlyForSoLong(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	csitest.Must(t, w.createReadOnly("r", "s"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.Images.Creating = func(volumes.ImageSpec) error { close(begun); <-goOn; return nil }
	var first error
	var all sync.WaitGroup
	all.Go(func() { first = w.publishReadOnly("r", "n1") })
	<-begun
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	_, err := w.Service.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
		VolumeId: "r", NodeId: "n2", VolumeCapability: readers(),
	})
	csitest.Wants(t, err, codes.Aborted, "the attachment of a read-only volume")
	_, err = w.Service.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: "r", NodeId: "n2"})
	csitest.Wants(t, err, codes.Aborted, "the attachment of a read-only volume")
	if ctx.Err() != nil {
		t.Error("the whole time of the call was waited for")
	}
	csitest.Wants(t, w.Delete("r"), codes.Aborted)
	close(goOn)
	all.Wait()
	csitest.Must(t, first)
}

// TestANodeThatIsGivenUpLosesItsReadOnlyVolume though its kernel still has the image mapped. A node that lives is
// waited for.
func TestANodeThatIsGivenUpLosesItsReadOnlyVolume(t *testing.T) {
	const client = "192.0.2.1:0/1"
	for name, c := range map[string]struct {
		giveUp func(*world)
		from   string
	}{
		"tainted":                         {func(w *world) { w.Taint("n1") }, "n1"},
		"deleted":                         {func(w *world) { csitest.Must(t, w.API.Delete(t.Context(), w.Fleet.Node("n1"))) }, "n1"},
		"tainted, and taken from all":     {func(w *world) { w.Taint("n1") }, ""},
		"tainted, and only this one's is": {func(w *world) { w.Taint("n1"); w.Taint("n2") }, "n1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.Snapshotted()
			csitest.Must(t, w.createReadOnly("r", "s"))
			csitest.Must(t, w.publishReadOnly("r", "n1"))
			csitest.Must(t, w.publishReadOnly("r", "n2"))
			image := func(node string) volumes.ImageRef {
				return volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: w.readOnly("r").ImageOn(node)}
			}
			w.Images.Open[image("n1")] = []string{client}
			if c.from == "n1" {
				w.Images.Open[image("n2")] = []string{"192.0.2.2:0/2"}
			}
			csitest.Wants(t, w.Unpublish("r", "n1"), codes.FailedPrecondition, client)
			if len(w.Images.Fenced) > 0 {
				t.Errorf("a node that lives is fenced: %q", w.Images.Fenced)
			}
			c.giveUp(w)
			w.Images.FailFence = volumes.ErrUnavailable
			csitest.Wants(t, w.Unpublish("r", c.from), codes.Unavailable, client)
			w.Images.FailFence = nil
			for range 2 {
				csitest.Must(t, w.Unpublish("r", c.from))
			}
			if !slices.Equal(w.Images.Fenced, []string{client}) {
				t.Errorf("fenced are %q", w.Images.Fenced)
			}
			if _, there := w.Images.Sizes[image("n1")]; there || w.readOnly("r").CopyOn("n1") != nil {
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
	w := newWorld(t)
	w.Snapshotted()
	csitest.Must(t, w.createReadOnly("r", "s"))
	w.Images.Creating = func(volumes.ImageSpec) error { return fmt.Errorf("no answer: %w", volumes.ErrUnavailable) }
	csitest.Wants(t, w.publishReadOnly("r", "n1"), codes.Unavailable)
	w.Images.Creating = nil
	ref := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: w.readOnly("r").ImageOn("n1")}
	w.Images.Sizes[ref] = 1 // half made
	csitest.Must(t, w.publishReadOnly("r", "n1"))
	if w.Images.Sizes[ref] != csitest.GiB || w.Images.Clones[ref] != "escache-s" {
		t.Errorf("the image has %d bytes, of snapshot %q", w.Images.Sizes[ref], w.Images.Clones[ref])
	}
	for node, note := range map[string]volumes.Note{
		"n2": {},
		"n3": {Version: volumes.NoteVersion, Volume: "r"}, // of a volume that can be written to
		"n9": {Version: volumes.NoteVersion, Volume: "other", ReadOnly: true},
	} {
		ref.Image = w.readOnly("r").ImageOn(node)
		w.Images.Sizes[ref], w.Images.Notes[ref] = 2, note
		for range 2 {
			csitest.Wants(t, w.publishReadOnly("r", node), codes.FailedPrecondition, "somebody's data", ref.Image, "rename or remove it")
		}
		csitest.Must(t, w.Unpublish("r", node))
		if w.Images.Sizes[ref] != 2 {
			t.Errorf("somebody else's image %s is gone", ref.Image)
		}
		if got := readonly.NodesOf(w.readOnly("r")); !slices.Equal(got, []string{"n1"}) {
			t.Errorf("on record are %q", got)
		}
	}
}

// TestAnImageOfThisReadOnlyVolumeThatIsNotOnRecordIsMadeAgain, but not another Kubernetes cluster's.
func TestAnImageOfThisReadOnlyVolumeThatIsNotOnRecordIsMadeAgain(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	csitest.Must(t, w.createReadOnly("r", "s"))
	ref := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: w.readOnly("r").ImageOn("n1")}
	w.Images.Sizes[ref], w.Images.Notes[ref] = 1, volumes.Note{Version: volumes.NoteVersion, Volume: "r", ReadOnly: true}
	w.Images.Foreign[ref] = true
	for range 2 {
		csitest.Wants(t, w.publishReadOnly("r", "n1"), codes.FailedPrecondition, "another Kubernetes cluster")
	}
	csitest.Must(t, w.Unpublish("r", "n1"))
	if w.Images.Sizes[ref] != 1 {
		t.Error("another Kubernetes cluster's image is gone")
	}
	delete(w.Images.Foreign, ref)
	csitest.Must(t, w.publishReadOnly("r", "n1"))
	if w.Images.Sizes[ref] != csitest.GiB || w.Images.Clones[ref] != "escache-s" {
		t.Errorf("the image has %d bytes, of snapshot %q", w.Images.Sizes[ref], w.Images.Clones[ref])
	}
}

// TestVolumesAreListedToTheLastReadOnlyOne: the page that ends with the last volume with a cache leads on. The
// API server of these tests takes no limit for its own pages.
func TestVolumesAreListedToTheLastReadOnlyOne(t *testing.T) {
	w := newWorld(t)
	w.Snapshotted()
	list := func(most int32) (pages [][]string) {
		for token := ""; ; {
			page, err := w.Service.ListVolumes(t.Context(), &csi.ListVolumesRequest{MaxEntries: most, StartingToken: token})
			csitest.Must(t, err)
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
	csitest.Must(t, w.createReadOnly("r1", "s"))
	csitest.Must(t, w.createReadOnly("r2", "s"))
	for most, want := range map[int32][][]string{0: {{"a", "r1", "r2"}}, 1: {{"a"}, {"r1", "r2"}}, 3: {{"a", "r1", "r2"}}} {
		if got := list(most); !reflect.DeepEqual(got, want) {
			t.Errorf("at most %d: %q", most, got)
		}
	}
}

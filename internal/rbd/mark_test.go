package rbd

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// openAs opens the cluster as the driver of a Kubernetes cluster. "" is one that marks nothing.
func openAs(t testing.TB, kubernetes string) *Cluster {
	t.Helper()
	return open(t, ceph, Options{Kubernetes: kubernetes, OwnsTrash: func(string) bool { return true }})
}

// metadata is what librbd, and with it the command rbd, says.
func metadata(t *testing.T, c *Cluster, ref ImageRef) map[string]string {
	t.Helper()
	all, err := onImage(t.Context(), c, "metadata", ref.String(), ref, readOnly, (*librbd.Image).ListMetadata)
	must(t, err)
	return all
}

func TestImagesCarryTheMarkOfTheirKubernetesCluster(t *testing.T) {
	c, pool, ctx := openAs(t, "a"), newPool(t), t.Context()
	parent, clone := spec(pool, "parent"), spec(pool, "clone")
	parent.Volume, clone.Volume, clone.SizeBytes = "v", "w", 128<<20
	parent.Note, clone.Note = "note of v", "note of w"
	snapshot := SnapshotRef{ImageRef: parent.ImageRef, Snapshot: "s"}
	must(t, c.CreateImage(ctx, parent))
	_, err := onImage(ctx, c, "metadata", "", parent.ImageRef, readWrite, func(image *librbd.Image) (struct{}, error) {
		return struct{}{}, errors.Join(image.SetMetadata("conf_rbd_cache", "false"), image.SetMetadata("zone", "1"))
	})
	must(t, err)
	must(t, second(c.CreateSnapshot(ctx, snapshot)))
	must(t, c.CloneImage(ctx, snapshot, clone))
	for ref, volume := range map[ImageRef]string{parent.ImageRef: "v", clone.ImageRef: "w"} {
		want := map[string]string{
			"escache.io/kubernetes-cluster": "a", "escache.io/volume": volume, "escache.io/record": "note of " + volume,
			"conf_rbd_cache": "false", "zone": "1",
		}
		if got := metadata(t, c, ref); !maps.Equal(got, want) {
			t.Errorf("%s has %v, not %v", ref, got, want)
		}
		if mark, err := c.MarkOf(ctx, ref); err != nil || mark != (Mark{Kubernetes: "a", Volume: volume, Note: "note of " + volume}) {
			t.Errorf("%s: %+v, %v", ref, mark, err)
		}
	}
}

func TestAnImageOfAnotherKubernetesClusterIsNotTouched(t *testing.T) {
	a, b, pool, ctx := openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	s, source := spec(pool, "one"), spec(pool, "source")
	s.Volume = "v"
	snapshot, own := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}, SnapshotRef{ImageRef: source.ImageRef, Snapshot: "s"}
	must(t, a.CreateImage(ctx, s))
	must(t, second(a.CreateSnapshot(ctx, snapshot)))
	must(t, b.CreateImage(ctx, source))
	must(t, second(b.CreateSnapshot(ctx, own)))
	before, err := a.ImageInfo(ctx, s.ImageRef)
	must(t, err)
	for name, err := range map[string]error{
		"create":          b.CreateImage(ctx, s),
		"clone":           b.CloneImage(ctx, own, s),
		"mark":            second(b.MarkImage(ctx, s.ImageRef, "v")),
		"note":            b.NoteImage(ctx, s.ImageRef, "v", "a note"),
		"grow":            second(b.GrowImage(ctx, s.ImageRef, 128<<20)),
		"snapshot":        second(b.CreateSnapshot(ctx, SnapshotRef{ImageRef: s.ImageRef, Snapshot: "t"})),
		"remove snapshot": b.RemoveSnapshot(ctx, snapshot),
		"delete":          b.DeleteImage(ctx, s.ImageRef),
	} {
		if !errors.Is(err, ErrForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.RemoveSnapshot(ctx, SnapshotRef{ImageRef: s.ImageRef, Snapshot: "t"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove a snapshot that is not there: %v", err)
	}
	if after, err := a.ImageInfo(ctx, s.ImageRef); err != nil || after != before {
		t.Errorf("it was %+v, and is %+v, %v", before, after, err)
	}
	if all, err := a.ListSnapshots(ctx, s.ImageRef); err != nil || len(all) != 1 {
		t.Errorf("snapshots %+v, %v", all, err)
	}
}

func TestAnImageWithoutAMarkGetsOneOnce(t *testing.T) {
	earlier, a, b, pool, ctx := openAs(t, ""), openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	s := spec(pool, "one")
	must(t, earlier.CreateImage(ctx, s))
	if mark, err := a.MarkOf(ctx, s.ImageRef); err != nil || mark != (Mark{}) {
		t.Fatalf("mark %+v, %v", mark, err)
	}
	var exists *ExistsError
	if err := a.CreateImage(ctx, s); !errors.As(err, &exists) || exists.Image.Mark != (Mark{}) {
		t.Fatalf("a create finds %v", err)
	}
	id, err := a.ImageID(ctx, s.ImageRef)
	must(t, err)
	// Both try at the same time, again and again: one of them has it.
	errs := inParallel(8, func(i int) error {
		got, err := []*Cluster{a, b}[i%2].MarkImage(ctx, s.ImageRef, "v")
		if err == nil && got != id {
			err = fmt.Errorf("ID %s, not %s", got, id)
		}
		return err
	})
	mark, err := a.MarkOf(ctx, s.ImageRef)
	must(t, err)
	for i, err := range errs {
		mine := mark == Mark{Kubernetes: []string{"a", "b"}[i%2], Volume: "v"}
		if (mine && err != nil) || (!mine && !errors.Is(err, ErrForeign)) {
			t.Errorf("call %d: %v, and the mark is %+v", i, err, mark)
		}
	}
	if _, err := a.MarkImage(ctx, ImageRef{pool, "none"}, "v"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
	if _, err := a.MarkOf(ctx, ImageRef{pool, "none"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("the mark of an image that is not there: %v", err)
	}
}

func TestANoteReplacesTheOneBeforeAndMarksWhatHasNoMark(t *testing.T) {
	earlier, a, pool, ctx := openAs(t, ""), openAs(t, "a"), newPool(t), t.Context()
	s := spec(pool, "one")
	must(t, earlier.CreateImage(ctx, s))
	for _, note := range []string{"first", "second"} {
		must(t, a.NoteImage(ctx, s.ImageRef, "v", note))
		must(t, second(a.MarkImage(ctx, s.ImageRef, "v"))) // which leaves the note as it is
		if mark, err := a.MarkOf(ctx, s.ImageRef); err != nil || mark != (Mark{Kubernetes: "a", Volume: "v", Note: note}) {
			t.Errorf("after %s: %+v, %v", note, mark, err)
		}
	}
	if err := a.NoteImage(ctx, ImageRef{pool, "none"}, "v", "note"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an image that is not there: %v", err)
	}
}

func TestAReleasedImageIsNobodys(t *testing.T) {
	a, b, pool, ctx := openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	s := spec(pool, "one")
	s.Volume, s.Note = "v", "the note"
	must(t, a.CreateImage(ctx, s))
	if err := b.ReleaseImage(ctx, s.ImageRef, "v", "by b"); !errors.Is(err, ErrForeign) {
		t.Errorf("by another Kubernetes cluster: %v", err)
	}
	before := metadata(t, a, s.ImageRef)
	if err := a.ReleaseImage(ctx, s.ImageRef, "w", "by w"); !errors.Is(err, ErrExists) {
		t.Errorf("by another volume: %v", err)
	}
	if got := metadata(t, a, s.ImageRef); !maps.Equal(got, before) {
		t.Errorf("changed by those who do not have the image: %v, not %v", got, before)
	}
	for range 2 {
		must(t, a.ReleaseImage(ctx, s.ImageRef, "v", "epoch 7"))
	}
	if got := metadata(t, a, s.ImageRef); !maps.Equal(got, map[string]string{"escache.io/released": "epoch 7"}) {
		t.Errorf("metadata %v", got)
	}
	var exists *ExistsError
	for name, err := range map[string]error{
		"mark":   second(a.MarkImage(ctx, s.ImageRef, "v")),
		"note":   a.NoteImage(ctx, s.ImageRef, "v", "note"),
		"grow":   second(a.GrowImage(ctx, s.ImageRef, 128<<20)),
		"create": a.CreateImage(ctx, s),
		"delete": a.DeleteImage(ctx, s.ImageRef),
	} {
		if !errors.Is(err, ErrReleased) || errors.As(err, &exists) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.RemoveSnapshot(ctx, SnapshotRef{ImageRef: s.ImageRef, Snapshot: "t"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("remove a snapshot that is not there: %v", err)
	}
	// Somebody else may put it into the trash, and wants it to stay there.
	_, err := call(ctx, a, "trash", "one", func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, pool, func(io *rados.IOContext) (struct{}, error) {
			return struct{}{}, librbd.GetImage(io, "one").Trash(0)
		})
	})
	must(t, err)
	must(t, second(a.EmptyTrash(ctx, pool)))
	if trash, err := a.TrashedImages(ctx, pool); err != nil || len(trash) != 1 {
		t.Errorf("trash %+v, %v", trash, err)
	}
}

func TestTrashOfAnotherKubernetesClusterIsLeftToIt(t *testing.T) {
	earlier, a, b, pool, ctx := openAs(t, ""), openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	// By other processes: each purges what it has moved there itself.
	for name, c := range map[string]*Cluster{"of-a": openAs(t, "a"), "of-b": openAs(t, "b"), "unmarked": earlier} {
		must(t, c.CreateImage(ctx, spec(pool, name)))
		must(t, c.DeleteImage(ctx, ImageRef{pool, name}))
	}
	if left, err := b.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
	if trash, err := b.TrashedImages(ctx, pool); err != nil || len(trash) != 1 || trash[0].Name != "of-a" {
		t.Fatalf("trash %+v, %v", trash, err)
	}
	if left, err := a.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
	waitForEmptyPool(t, a, pool)
}

// TestAMarkCostsTwoMessages counts what the OSD does for a creation with and without mark and note.
func TestAMarkCostsTwoMessages(t *testing.T) {
	const images, noise = 40, 0.5
	pool, ctx := newPool(t), t.Context()
	cost := func(c *Cluster, kind string) float64 {
		must(t, c.CreateImage(ctx, spec(pool, kind)))
		before := operations(t)
		for i := range images {
			s := spec(pool, fmt.Sprint(kind, i))
			s.Volume, s.Note = "v", "a note"
			must(t, c.CreateImage(ctx, s))
		}
		return float64(operations(t)-before) / images
	}
	bare, marked := cost(openAs(t, ""), "bare"), cost(openAs(t, "a"), "marked")
	t.Logf("a creation costs %.2f messages without a mark, %.2f with one", bare, marked)
	if more := marked - bare; more < 2-noise || more > 2+noise {
		t.Errorf("the mark costs %.2f messages", more)
	}
}

// operations is how many the OSD has done for clients.
func operations(t *testing.T) int {
	t.Helper()
	var counters struct {
		OSD struct {
			Op int `json:"op"`
		} `json:"osd"`
	}
	must(t, json.Unmarshal([]byte(ceph.Ceph(t, "tell", "osd.0", "perf", "dump", "osd")), &counters))
	if counters.OSD.Op == 0 {
		t.Fatal("the OSD counts nothing")
	}
	return counters.OSD.Op
}

func TestAnAnswerThatIsCutOffIsNoMetadata(t *testing.T) {
	whole := appendText(appendText([]byte{1, 0, 0, 0}, "key"), "value")
	if got, err := parseMetadata(whole); err != nil || got["key"] != "value" || len(got) != 1 {
		t.Fatalf("got %v, %v", got, err)
	}
	for n := range whole {
		if got, err := parseMetadata(whole[:n]); err == nil {
			t.Errorf("%d bytes of %d: got %v", n, len(whole), got)
		}
	}
}

// TestAnImageStaysForTheSnapshotsOfADeletedVolume, and says so until its volume is on record again. A
// clone of such a snapshot does not inherit that.
func TestAnImageStaysForTheSnapshotsOfADeletedVolume(t *testing.T) {
	a, b, pool, ctx := openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	s, clone := spec(pool, "one"), spec(pool, "clone")
	s.Volume, s.Note, clone.Volume = "v", "a note", "w"
	must(t, a.CreateImage(ctx, s))
	from := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
	must(t, second(a.CreateSnapshot(ctx, from)))
	const at, later = "2027-03-01T12:00:00Z", "2027-03-02T12:00:00Z"
	must(t, a.KeepImage(ctx, s.ImageRef, "v", at))
	must(t, a.KeepImage(ctx, s.ImageRef, "v", later)) // repeated
	kept := Mark{Kubernetes: "a", Volume: "v", Note: "a note", Deleted: at}
	if mark, err := a.MarkOf(ctx, s.ImageRef); err != nil || mark != kept {
		t.Errorf("mark %+v, %v", mark, err)
	}
	for name, tc := range map[string]struct{ err, want error }{
		"of another volume":     {a.KeepImage(ctx, s.ImageRef, "w", at), ErrExists},
		"of another Kubernetes": {b.KeepImage(ctx, s.ImageRef, "v", at), ErrForeign},
		"that is not there":     {a.KeepImage(ctx, ImageRef{pool, "none"}, "v", at), ErrNotFound},
		"adopted":               {second(a.AdoptImage(ctx, s.ImageRef, "v", "another note")), ErrExists},
	} {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("an image %s: %v", name, tc.err)
		}
	}
	seen, err := a.Inspect(ctx, s.ImageRef)
	must(t, err)
	if says := strings.Join(seen.Refusals("v"), ";"); !strings.Contains(says, "was deleted at "+at) || !strings.Contains(says, markDeleted) {
		t.Errorf("refusals: %q", says)
	}
	must(t, a.CloneImage(ctx, from, clone))
	if mark, err := a.MarkOf(ctx, clone.ImageRef); err != nil || mark != (Mark{Kubernetes: "a", Volume: "w"}) {
		t.Errorf("the clone's mark: %+v, %v", mark, err)
	}
	must(t, a.NoteImage(ctx, s.ImageRef, "v", "it is back"))
	if mark, err := a.MarkOf(ctx, s.ImageRef); err != nil || mark != (Mark{Kubernetes: "a", Volume: "v", Note: "it is back"}) {
		t.Errorf("the mark of one whose volume is back: %+v, %v", mark, err)
	}
}

// TestAnImageIsTakenFromTheClusterThatWasNamed, and from no other.
func TestAnImageIsTakenFromTheClusterThatWasNamed(t *testing.T) {
	a, b, pool, ctx := openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	s := spec(pool, "one")
	s.Volume, s.Note = "v", "epoch 4"
	must(t, a.CreateImage(ctx, s))
	for name, try := range map[string]struct {
		from, volume string
		want         error
	}{
		"no cluster named":      {"", "v", ErrForeign},
		"another cluster named": {"c", "v", ErrForeign},
		"another volume":        {"a", "w", ErrExists},
	} {
		if _, err := b.RetakeImage(ctx, s.ImageRef, try.from, try.volume, "epoch 5"); !errors.Is(err, try.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if mark, err := a.MarkOf(ctx, s.ImageRef); err != nil || mark != (Mark{Kubernetes: "a", Volume: "v", Note: "epoch 4"}) {
		t.Fatalf("it was changed: %+v, %v", mark, err)
	}
	for range 2 {
		id, err := b.RetakeImage(ctx, s.ImageRef, "a", "v", "epoch 5")
		if must(t, err); id == "" {
			t.Error("no id")
		}
	}
	if mark, err := b.MarkOf(ctx, s.ImageRef); err != nil || mark != (Mark{Kubernetes: "b", Volume: "v", Note: "epoch 5"}) {
		t.Errorf("mark %+v, %v", mark, err)
	}
	if err := a.NoteImage(ctx, s.ImageRef, "v", "epoch 6"); !errors.Is(err, ErrForeign) {
		t.Errorf("the former cluster still has it: %v", err)
	}
	must(t, b.KeepImage(ctx, s.ImageRef, "v", "now"))
	if _, err := b.RetakeImage(ctx, s.ImageRef, "", "v", "epoch 7"); !errors.Is(err, ErrExists) {
		t.Errorf("of a deleted volume: %v", err)
	}
	bare := spec(pool, "bare")
	foreignImage(t, b, bare.ImageRef, 1<<20, "layering", "exclusive-lock")
	if _, err := b.RetakeImage(ctx, bare.ImageRef, "a", "v", "epoch 5"); !errors.Is(err, ErrExists) {
		t.Errorf("of nobody: %v", err)
	}
}

// TestAnImageThatAnotherVolumeHasKeepsItsMarkAndNote: the record of a volume that gave it up may come back.
func TestAnImageThatAnotherVolumeHasKeepsItsMarkAndNote(t *testing.T) {
	of := func(image ImageRef, volume, note string) error {
		if note == "of "+image.Name {
			return errors.New("the note says so")
		}
		return nil
	}
	c, pool, ctx := open(t, ceph, Options{Kubernetes: "a", MayMark: of}), newPool(t), t.Context()
	s := spec(pool, "i")
	s.Volume, s.Note = "adopted", "of i"
	must(t, c.CreateImage(ctx, s))
	want := Mark{Kubernetes: "a", Volume: "adopted", Note: "of i"}
	for what, err := range map[string]error{
		"mark": second(c.MarkImage(ctx, s.ImageRef, "former")),
		"note": c.NoteImage(ctx, s.ImageRef, "former", "epoch 1"),
	} {
		if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "adopted") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if mark, err := c.MarkOf(ctx, s.ImageRef); err != nil || mark != want {
		t.Errorf("%+v, %v", mark, err)
	}
	// A clone that was left half made has what its parent has.
	must(t, c.NoteImage(ctx, s.ImageRef, "adopted", "of its parent"))
	must(t, second(c.MarkImage(ctx, s.ImageRef, "clone")))
	if mark, err := c.MarkOf(ctx, s.ImageRef); err != nil || mark.Volume != "clone" {
		t.Errorf("the clone: %+v, %v", mark, err)
	}
}

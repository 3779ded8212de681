package rbd

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// foreignImage makes an image as another tool does: without a mark, and with these features.
func foreignImage(t *testing.T, c *Cluster, ref ImageRef, bytes int64, features ...string) {
	t.Helper()
	_, err := call(t.Context(), c, "foreign", ref.String(), func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			o := librbd.NewRbdImageOptions()
			defer o.Destroy()
			if err := o.SetUint64(librbd.ImageOptionFeatures, uint64(librbd.FeatureSetFromNames(features))); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, librbd.CreateImage(io, ref.Name, uint64(bytes), o)
		})
	})
	must(t, err)
}

// write opens the image for writing, as a client does.
func write(t *testing.T, c *Cluster, ref ImageRef, fn func(*librbd.Image) error) {
	t.Helper()
	_, err := onImage(t.Context(), c, "write", ref.String(), ref, readWrite, func(image *librbd.Image) (struct{}, error) {
		return struct{}{}, fn(image)
	})
	must(t, err)
}

func TestWhatKeepsAnImageFromBeingAVolume(t *testing.T) {
	a, b, pool, ctx := openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	usual := []string{"layering", "exclusive-lock", "deep-flatten"}
	for name, tc := range map[string]struct {
		bytes    int64
		features []string
		prepare  func(t *testing.T, ref ImageRef)
		says     []string // nothing: it is fit
	}{
		"good":               {},
		"with an object-map": {features: append([]string{"object-map", "fast-diff"}, usual...)},
		"small":              {bytes: 1<<20 - 4096, says: []string{"from 1 MiB"}},
		"odd":                {bytes: 1<<20 + 512, says: []string{"4096", "rbd resize"}},
		"journaling": {
			features: append([]string{"journaling"}, usual...), says: []string{"journaling", "rbd feature disable " + pool + "/journaling journaling"},
		},
		"no-lock": {features: []string{"layering"}, says: []string{"rbd feature enable " + pool + "/no-lock exclusive-lock"}},
		"luks": {prepare: func(t *testing.T, ref ImageRef) {
			write(t, a, ref, func(i *librbd.Image) error { _, err := i.WriteAt([]byte("LUKS\xba\xbe\x00\x02"), 0); return err })
		}, says: []string{"encrypted"}},
		"csi-encrypted": {prepare: func(t *testing.T, ref ImageRef) {
			write(t, a, ref, func(i *librbd.Image) error { return i.SetMetadata("rbd.csi.ceph.com/encrypted", "encryptionPrepared") })
		}, says: []string{"encrypted"}},
		"locked": {prepare: func(t *testing.T, ref ImageRef) {
			held, release, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = onImage(context.Background(), b, "write", ref.String(), ref, readWrite, func(i *librbd.Image) (struct{}, error) {
					_, err := i.WriteAt(make([]byte, 4096), 0) // takes the exclusive lock
					close(held)
					<-release
					return struct{}{}, err
				})
			}()
			<-held
			t.Cleanup(func() {
				close(release)
				<-ended
			})
		}, says: []string{"has it open", "holds its lock", "client."}},
		"left-locked": {prepare: func(t *testing.T, ref ImageRef) { leaveLocked(t, a, ref) }, says: []string{
			"does not have it open", "ceph osd blocklist add ", "rbd lock rm " + pool + `/left-locked "auto 1" client.`,
		}},
		"marked": {prepare: func(t *testing.T, ref ImageRef) {
			must(t, second(a.MarkImage(ctx, ref, "v")))
		}, says: []string{"volume v of this Kubernetes cluster", "rbd image-meta remove " + pool + "/marked"}},
		"foreign": {prepare: func(t *testing.T, ref ImageRef) {
			must(t, second(b.MarkImage(ctx, ref, "v")))
		}, says: []string{"volume v of another Kubernetes cluster", "UID b"}},
		"released": {prepare: func(t *testing.T, ref ImageRef) {
			must(t, second(b.MarkImage(ctx, ref, "v")))
			must(t, b.ReleaseImage(ctx, ref, "v", "a note"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ref := ImageRef{Pool: pool, Name: strings.ReplaceAll(name, " ", "-")}
			if tc.bytes == 0 {
				tc.bytes = 64 << 20
			}
			if tc.features == nil {
				tc.features = usual
			}
			foreignImage(t, a, ref, tc.bytes, tc.features...)
			if tc.prepare != nil {
				tc.prepare(t, ref)
			}
			seen, err := a.Inspect(ctx, ref)
			must(t, err)
			says := strings.Join(seen.Refusals("new"), "; and ")
			if (says == "") != (tc.says == nil) {
				t.Errorf("refusals: %q", says)
			}
			for _, word := range tc.says {
				if !strings.Contains(says, word) {
					t.Errorf("it does not say %q: %s", word, says)
				}
			}
			if seen.ID == "" || seen.SizeBytes != tc.bytes {
				t.Errorf("seen: %+v", seen)
			}
		})
	}
}

func TestAClonesParentIsNamed(t *testing.T) {
	a, pool, ctx := openAs(t, "a"), newPool(t), t.Context()
	parent, clone := spec(pool, "parent"), spec(pool, "clone")
	must(t, a.CreateImage(ctx, parent))
	must(t, second(a.CreateSnapshot(ctx, SnapshotRef{ImageRef: parent.ImageRef, Snapshot: "s"})))
	must(t, a.CloneImage(ctx, SnapshotRef{ImageRef: parent.ImageRef, Snapshot: "s"}, clone))
	must(t, a.ReleaseImage(ctx, clone.ImageRef, clone.Volume, "a note"))
	seen, err := a.Inspect(ctx, clone.ImageRef)
	must(t, err)
	if says := strings.Join(seen.Refusals("new"), ";"); !strings.Contains(says, pool+"/parent@s") || !strings.Contains(says, "rbd flatten "+pool+"/clone") {
		t.Errorf("refusals: %q", says)
	}
}

func TestAnImageThatIsNotThereUnderItsName(t *testing.T) {
	a, pool, ctx := openAs(t, "a"), newPool(t), t.Context()
	must(t, a.CreateImage(ctx, spec(pool, "one")))
	must(t, a.DeleteImage(ctx, ImageRef{pool, "one"}))
	if _, err := a.Inspect(ctx, ImageRef{pool, "one"}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "rbd trash restore --pool "+pool) {
		t.Errorf("in the trash: %v", err)
	}
	if _, err := a.Inspect(ctx, ImageRef{pool, "none"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("not there: %v", err)
	}
}

func TestAnImageIsAdoptedOnce(t *testing.T) {
	a, b, pool, ctx := openAs(t, "a"), openAs(t, "b"), newPool(t), t.Context()
	ref := ImageRef{pool, "one"}
	foreignImage(t, a, ref, 64<<20, "layering", "exclusive-lock")
	must(t, b.NoteImage(ctx, ref, "former", "a note"))
	must(t, b.ReleaseImage(ctx, ref, "former", "the last note"))
	volumes := []string{"v", "w", "x", "y"}
	errs := inParallel(8, func(i int) error { return second([]*Cluster{a, b}[i%2].AdoptImage(ctx, ref, volumes[i%4], "note")) })
	mark, err := a.MarkOf(ctx, ref)
	must(t, err)
	for i, err := range errs {
		mine := mark == Mark{Kubernetes: []string{"a", "b"}[i%2], Volume: volumes[i%4], Note: "note"}
		if mine != (err == nil) || !mine && !errors.Is(err, ErrExists) && !errors.Is(err, ErrForeign) {
			t.Errorf("call %d: %v, and the mark is %+v", i, err, mark)
		}
	}
}

// leaveLocked leaves the lock of a client that does not have the image open, as the death of its host does.
func leaveLocked(t *testing.T, c *Cluster, ref ImageRef) {
	t.Helper()
	_, err := call(t.Context(), c, "lock", "", func(conn *rados.Conn) (struct{}, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) (struct{}, error) {
			id, err := imageID(io, ref.Name)
			if err == nil {
				_, err = io.LockExclusive("rbd_header."+id, "rbd_lock", "auto 1", "", 0, nil)
			}
			return struct{}{}, err
		})
	})
	must(t, err)
}

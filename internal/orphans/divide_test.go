package orphans

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
)

var errSlow = errors.New("no answer")

// pool is a pool of images and whose they are. The image "broken" answers nothing.
type pool map[string]string

const released = "released"

func (p pool) List(_ context.Context, _, _, prefix string) (names []string, _ error) {
	for name := range p {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	return names, nil
}

func (p pool) MarkOf(_ context.Context, _, _, image string) (Mark, error) {
	switch p[image] {
	case "broken":
		return Mark{}, errSlow
	case "unasked":
		panic("nobody may ask for the mark of an image that has a record")
	case released:
		return Mark{Released: true}, nil
	}
	return Mark{Kubernetes: p[image], Note: Note{Volume: "of-" + image}}, nil
}

func TestFindTellsImagesApartByTheirMarks(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, storagev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", CreationTimestamp: metav1.Now()}}
	v.Spec.ClusterID, v.Spec.Pool, v.Spec.Image = "ceph", "rbd", "e-recorded"
	images := pool{
		"e-recorded": "unasked", "e-own-2": "us", "e-own-1": "us", "e-old": "", "e-theirs": "them", "e-free": released, "other": "us", "e-broken": "broken",
		"e-kept": "unasked",
	}
	read := &v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	read.Spec.ClusterID, read.Spec.Pool, read.Spec.Image = "ceph", "rbd", "e-r"
	read.Status.Copies = []v1alpha1.ReadOnlyCopy{{Node: "n1"}}
	images[read.ImageOn("n1")] = "unasked"
	images[read.ImageOn("n2")] = "us" // not on record
	of := func(name, image string) *v1alpha1.CacheSnapshot {
		return &v1alpha1.CacheSnapshot{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.CacheSnapshotSpec{ClusterID: "ceph", Pool: "rbd", Image: image, Volume: "of-" + image},
		}
	}
	search := Search{
		Reader:     fake.NewClientBuilder().WithScheme(scheme).WithObjects(v, read, of("s2", "e-kept"), of("s1", "e-kept"), of("s", "e-recorded")).Build(),
		Images:     images,
		Kubernetes: "us", Prefix: "e-", Young: time.Hour, Now: time.Now,
	}
	found, err := search.Find(t.Context())
	if !errors.Is(err, errSlow) || !strings.Contains(err.Error(), "ceph/rbd/e-broken") {
		t.Errorf("an image whose mark cannot be read: %v", err)
	}
	for name, is := range map[string][2][]string{
		"own":      {named(t, found.Images), {"e-own-1", "e-own-2", read.ImageOn("n2")}},
		"unmarked": {named(t, found.Unmarked), {"e-old"}},
		"foreign":  {names(found.Foreign), {"e-theirs"}},
		"released": {names(found.Released), {"e-free"}},
	} {
		if !slices.Equal(is[0], is[1]) {
			t.Errorf("%s: %v, not %v", name, is[0], is[1])
		}
	}
	want := []Kept{{Image{Pool{"ceph", "rbd"}, "e-kept"}, "of-e-kept", []string{"s1", "s2"}}}
	if !reflect.DeepEqual(found.Kept, want) {
		t.Errorf("kept: %+v", found.Kept)
	}
	delete(images, "e-broken")
	if _, err := search.Find(t.Context()); err != nil {
		t.Error(err)
	}
}

// named is names, and fails unless each has the note of its own image.
func named(t *testing.T, images []Lost) (out []string) {
	t.Helper()
	for _, l := range images {
		if l.Note.Volume != "of-"+l.Image.Image {
			t.Errorf("%s has the note of volume %s", l, l.Note.Volume)
		}
		out = append(out, l.Image.Image)
	}
	return out
}

func names(images []Image) (out []string) {
	for _, i := range images {
		out = append(out, i.Image)
	}
	return out
}

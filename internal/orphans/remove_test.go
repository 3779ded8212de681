package orphans

import (
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestRemoveVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		status  v1alpha1.CacheVolumeStatus
		remove  string
		refusal string // empty: it is removed
	}{
		"never attached":    {v1alpha1.CacheVolumeStatus{Authority: v1alpha1.AuthorityCeph}, "v", ""},
		"not an orphan":     {v1alpha1.CacheVolumeStatus{}, "w", "is not an orphan"},
		"attached":          {v1alpha1.CacheVolumeStatus{AttachedNode: "n1"}, "v", `attached to node "n1"`},
		"dirty":             {v1alpha1.CacheVolumeStatus{Authority: v1alpha1.AuthorityCache}, "v", "may have dirty data"},
		"replicas on hosts": {v1alpha1.CacheVolumeStatus{Authority: v1alpha1.AuthorityCeph, Epoch: 1}, "v", "kubectl escache release --volume v"},
	} {
		t.Run(name, func(t *testing.T) {
			v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v", Finalizers: []string{v1alpha1.Finalizer}}, Status: tc.status}
			v.Spec.Replicas = []string{"n1", "n2"}
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			kube := fake.NewClientBuilder().WithScheme(scheme).WithObjects(v).Build()
			err := Removal{Found: Found{Volumes: []Volume{{Name: "v"}}}, Kube: kube}.Volume(t.Context(), tc.remove)
			gone := apierrors.IsNotFound(kube.Get(t.Context(), client.ObjectKey{Name: "v"}, v))
			switch {
			case tc.refusal == "" && (err != nil || !gone):
				t.Errorf("not removed: %v", err)
			case tc.refusal != "" && (err == nil || gone || !strings.Contains(err.Error(), tc.refusal)):
				t.Errorf("removed, or refused without %q: %v", tc.refusal, err)
			}
		})
	}
}

func TestRemoveReadOnlyVolume(t *testing.T) {
	now := metav1.Now()
	for name, tc := range map[string]struct {
		deleted *metav1.Time
		status  v1alpha1.ReadOnlyVolumeStatus
		remove  string
		refusal string // empty: it is removed
	}{
		"unused":               {nil, v1alpha1.ReadOnlyVolumeStatus{}, "r", ""},
		"unused, and deleted":  {&now, v1alpha1.ReadOnlyVolumeStatus{}, "r", ""},
		"not an orphan":        {nil, v1alpha1.ReadOnlyVolumeStatus{}, "w", "is not an orphan"},
		"attached by now":      {nil, v1alpha1.ReadOnlyVolumeStatus{Copies: []v1alpha1.ReadOnlyCopy{{Node: "n1"}}}, "r", "attached to n1"},
		"deleted and attached": {&now, v1alpha1.ReadOnlyVolumeStatus{Copies: []v1alpha1.ReadOnlyCopy{{Node: "n1"}}}, "r", "attached to n1"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{
				Name: "r", UID: "u", Finalizers: []string{v1alpha1.ReadOnlyFinalizer}, DeletionTimestamp: tc.deleted,
			}, Status: tc.status}
			scheme := runtime.NewScheme()
			if err := v1alpha1.AddToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			var asked client.DeleteOptions
			kube := interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(r).Build(), interceptor.Funcs{
				Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
					asked.ApplyOptions(options)
					return c.Delete(ctx, o, options...)
				},
			})
			err := Removal{Found: Found{Volumes: []Volume{{Name: "r", ReadOnly: true}}}, Kube: kube}.Volume(t.Context(), tc.remove)
			gone := apierrors.IsNotFound(kube.Get(t.Context(), client.ObjectKey{Name: "r"}, r))
			switch {
			case tc.refusal == "" && (err != nil || !gone):
				t.Errorf("not removed: %v", err)
			case tc.refusal == "" && (asked.Preconditions == nil || asked.Preconditions.UID == nil || asked.Preconditions.ResourceVersion == nil):
				t.Errorf("removed whatever has become of it: %+v", asked.Preconditions)
			case tc.refusal != "" && (err == nil || gone || !strings.Contains(err.Error(), tc.refusal)):
				t.Errorf("removed, or refused without %q: %v", tc.refusal, err)
			}
		})
	}
}

func TestRemoveImage(t *testing.T) {
	orphan := Image{Pool: Pool{"ceph", "rbd"}, Image: "escache-v"}
	var deleted []Image
	r := Removal{Found: Found{Images: []Lost{{orphan, Note{Volume: "v"}}}}, DeleteImage: func(_ context.Context, i Image) error {
		deleted = append(deleted, i)
		return nil
	}}
	if err := r.Image(t.Context(), "ceph/rbd/other"); err == nil || !strings.Contains(err.Error(), "is not an orphan") {
		t.Errorf("another image: %v", err)
	}
	if err := r.Image(t.Context(), "ceph/rbd/escache-v"); err != nil || len(deleted) != 1 || deleted[0] != orphan {
		t.Errorf("the orphan: deleted %v, %v", deleted, err)
	}
	unmarked, foreign := Image{orphan.Pool, "escache-u"}, Image{orphan.Pool, "escache-f"}
	r.Found.Unmarked, r.Found.Foreign = []Lost{{Image: unmarked}}, []Image{foreign}
	if err := r.Image(t.Context(), unmarked.String()); err == nil || !strings.Contains(err.Error(), "--allow-unmarked") || len(deleted) != 1 {
		t.Errorf("an image without a mark: deleted %v, %v", deleted, err)
	}
	r.AllowUnmarked = true
	if err := r.Image(t.Context(), foreign.String()); err == nil || !strings.Contains(err.Error(), "another Kubernetes cluster") || len(deleted) != 1 {
		t.Errorf("an image of another Kubernetes cluster: deleted %v, %v", deleted, err)
	}
	if err := r.Image(t.Context(), unmarked.String()); err != nil || len(deleted) != 2 || deleted[1] != unmarked {
		t.Errorf("an image without a mark, allowed: deleted %v, %v", deleted, err)
	}
	kept := Kept{Image{orphan.Pool, "escache-k"}, "k", []string{"s"}}
	r.Found.Kept = []Kept{kept}
	if err := r.Image(t.Context(), kept.String()); err == nil || !strings.Contains(err.Error(), "stays for its snapshot s: delete") || len(deleted) != 2 {
		t.Errorf("an image that stays for a snapshot: deleted %v, %v", deleted, err)
	}
	inUse := errors.New("in use")
	r.DeleteImage = func(context.Context, Image) error { return inUse }
	if err := r.Image(t.Context(), "ceph/rbd/escache-v"); !errors.Is(err, inUse) {
		t.Errorf("an image in use: %v", err)
	}
}

// TestAnImageWithWhichDataMayBeLostIsNotRemoved: after a restore of etcd, an image without a record may be all that
// tells of a volume whose newest data is in a cache.
func TestAnImageWithWhichDataMayBeLostIsNotRemoved(t *testing.T) {
	hosts := []string{"n1", "n2"}
	for name, tc := range map[string]struct {
		note  Note
		state string
		loses bool
	}{
		"never attached":                 {Note{Volume: "v", Hosts: hosts}, "never attached", false},
		"dirty":                          {Note{Volume: "v", Epoch: 3, Hosts: hosts}, "used until epoch 3, and the caches on n1 and n2", true},
		"used, and all in Ceph":          {Note{Volume: "v", Epoch: 3, Hosts: hosts, InCeph: true}, "used until epoch 3, and all its data", true},
		"no note":                        {Note{}, "not known whether it was used: its metadata", true},
		"a note that cannot be read":     {Note{Unreadable: "no JSON"}, "not known whether it was used: no JSON", true},
		"an adopted one":                 {Note{Volume: "v", Adopted: true}, "adopted with the data", true},
		"a copy":                         {Note{Volume: "v", Copy: true}, "a copy of a snapshot", true},
		"a deleted volume's":             {Note{Volume: "v", Epoch: 3, Deleted: "yesterday"}, "deleted at yesterday", false},
		"a node's of a read-only volume": {Note{Volume: "v", ReadOnly: true}, "data is in the snapshot", false},
	} {
		t.Run(name, func(t *testing.T) {
			lost := Lost{Image{Pool{"ceph", "rbd"}, "escache-v"}, tc.note}
			if state := lost.State(); !strings.Contains(state, tc.state) {
				t.Errorf("state %q", state)
			}
			for found, unmarked := range map[*Found]bool{{Images: []Lost{lost}}: false, {Unmarked: []Lost{lost}}: true} {
				deleted := 0
				r := Removal{Found: *found, AllowUnmarked: true, DeleteImage: func(context.Context, Image) error {
					deleted++
					return nil
				}}
				err := r.Image(t.Context(), lost.String())
				refused := tc.loses && (!unmarked || tc.note.Volume != "" || tc.note.Unreadable != "")
				switch {
				case refused && (err == nil || deleted != 0):
					t.Errorf("unmarked %t: removed, and with it what was at stake", unmarked)
				case refused:
					for _, word := range []string{tc.state, "kubectl escache adopt --all", "--accept-losses"} {
						if !strings.Contains(err.Error(), word) {
							t.Errorf("unmarked %t: it does not say %q: %v", unmarked, word, err)
						}
					}
				case err != nil || deleted != 1:
					t.Errorf("unmarked %t: not removed: %v", unmarked, err)
				}
				r.AcceptLosses = true
				if err := r.Image(t.Context(), lost.String()); err != nil {
					t.Errorf("unmarked %t: the losses are accepted: %v", unmarked, err)
				}
			}
		})
	}
}

package orphans

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// oneCluster has images in the pools of the cluster "ceph", and knows no other.
type oneCluster struct{ images []string }

func (c oneCluster) List(_ context.Context, clusterID, _, _ string) ([]string, error) {
	if clusterID != "ceph" {
		return nil, errors.New("no such cluster: " + clusterID)
	}
	return c.images, nil
}

// MarkOf finds the mark of this Kubernetes cluster on every image.
func (oneCluster) MarkOf(context.Context, string, string, string) (Mark, error) {
	return Mark{Kubernetes: "here"}, nil
}

func class(name, clusterID string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: v1alpha1.DriverName,
		Parameters: map[string]string{"clusterID": clusterID, "pool": "rbd"},
	}
}

// search looks at one pool that there is and, if wrong, at a cluster that there is not.
func search(t *testing.T, wrong bool) Search {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{class("good", "ceph")}
	if wrong {
		objects = append(objects, class("typo", "no-such"))
	}
	return Search{
		Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(),
		Images: oneCluster{[]string{"escache-a", "escache-b"}}, Kubernetes: "here", Prefix: "escache-", Now: time.Now,
	}
}

func TestAnUnknownClusterDoesNotHideTheOrphansOfOthers(t *testing.T) {
	found, err := search(t, true).Find(t.Context())
	if !errors.Is(err, ErrIncomplete) || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("error %v", err)
	}
	var names []string
	for _, i := range found.Images {
		names = append(names, i.String())
	}
	if !slices.Equal(names, []string{"ceph/rbd/escache-a", "ceph/rbd/escache-b"}) {
		t.Errorf("found %v", names)
	}
}

// TestReadOnlyVolumesWithoutAPersistentVolumeAreFound beside those that can be written to, and counted.
func TestReadOnlyVolumesWithoutAPersistentVolumeAreFound(t *testing.T) {
	s := search(t, false)
	s.Young = time.Hour
	kube := s.Reader.(client.Client)
	old := metav1.NewTime(time.Now().Add(-2 * time.Hour).Truncate(time.Second))
	meta := func(name string, since metav1.Time) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, CreationTimestamp: since, Annotations: map[string]string{v1alpha1.AnnotationClaim: "ns/" + name}}
	}
	at := v1alpha1.ReadOnlyVolumeStatus{Copies: []v1alpha1.ReadOnlyCopy{{Node: "n1"}}}
	bound := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "bound"}}
	bound.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "bound"}
	in := v1alpha1.ReadOnlyVolumeSpec{ClusterID: "ceph", Pool: "rbd"}
	for _, o := range []client.Object{
		&v1alpha1.ReadOnlyVolume{ObjectMeta: meta("left", old), Spec: in},
		&v1alpha1.ReadOnlyVolume{ObjectMeta: meta("young", metav1.Now()), Spec: in},
		&v1alpha1.ReadOnlyVolume{ObjectMeta: meta("attached", old), Spec: in, Status: at},
		&v1alpha1.ReadOnlyVolume{ObjectMeta: meta("bound", old), Spec: in}, bound,
		&v1alpha1.CacheVolume{ObjectMeta: meta("a", old), Spec: v1alpha1.CacheVolumeSpec{ClusterID: "ceph", Pool: "rbd"}},
	} {
		if err := kube.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	found, err := s.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Volumes) != 2 || found.Volumes[0].Name != "a" || found.Volumes[0].ReadOnly {
		t.Fatalf("found %+v", found.Volumes)
	}
	v := found.Volumes[1]
	if v.Name != "left" || !v.ReadOnly || v.Claim != "ns/left" || !v.Since.Equal(old.Time) || v.State() != "read-only, can be removed" {
		t.Errorf("found %+v, %s", v, v.State())
	}
	r := prometheus.NewRegistry()
	w := NewWatch(s, time.Hour, slog.New(slog.DiscardHandler), r)
	w.look(t.Context())
	if n := gauges(t, r)["escache_orphans volume"]; n != 2 {
		t.Errorf("counted %v", n)
	}
}

// TestThePoolOfAReadOnlyVolumeIsSearched though no StorageClass names it any more.
func TestThePoolOfAReadOnlyVolumeIsSearched(t *testing.T) {
	s := search(t, false)
	r := &v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
	r.Spec.ClusterID, r.Spec.Pool = "ceph", "old"
	if err := s.Reader.(client.Client).Create(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	found, err := s.Find(t.Context())
	if at := slices.IndexFunc(found.Images, func(l Lost) bool { return l.Pool.Pool == "old" }); err != nil || at < 0 {
		t.Errorf("found %v, %v", found.Images, err)
	}
}

func TestTheMetricTellsWhatCouldBeSearched(t *testing.T) {
	for name, wrong := range map[string]bool{"all": false, "all but one": true} {
		t.Run(name, func(t *testing.T) {
			r, log := prometheus.NewRegistry(), &bytes.Buffer{}
			w := NewWatch(search(t, wrong), time.Hour, slog.New(slog.NewTextHandler(log, nil)), r)
			for range 3 {
				w.look(t.Context())
			}
			incomplete := 0.0
			lines := 0
			if wrong {
				incomplete, lines = 1, 1
			}
			got := gauges(t, r)
			if got["escache_orphans image"] != 2 || got["escache_orphans_search_incomplete"] != incomplete {
				t.Errorf("metrics %v", got)
			}
			if n := strings.Count(log.String(), "\n"); n != lines {
				t.Errorf("%d lines: %s", n, log)
			}
		})
	}
}

// gauges are the values by names and labels.
func gauges(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			key := f.GetName()
			for _, l := range m.GetLabel() {
				key += " " + l.GetValue()
			}
			got[key] = m.GetGauge().GetValue()
		}
	}
	return got
}

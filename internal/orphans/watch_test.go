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

// KubernetesCluster finds the mark of this Kubernetes cluster on every image.
func (oneCluster) KubernetesCluster(context.Context, string, string, string) (string, error) {
	return "here", nil
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
			got := map[string]float64{}
			families, err := r.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, m := range f.GetMetric() {
					key := f.GetName()
					for _, l := range m.GetLabel() {
						key += " " + l.GetValue()
					}
					got[key] = m.GetGauge().GetValue()
				}
			}
			if got["escache_orphans image"] != 2 || got["escache_orphans_search_incomplete"] != incomplete {
				t.Errorf("metrics %v", got)
			}
			if n := strings.Count(log.String(), "\n"); n != lines {
				t.Errorf("%d lines: %s", n, log)
			}
		})
	}
}

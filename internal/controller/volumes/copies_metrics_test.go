package volumes

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
)

func TestOneCopyIsExportedByReason(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	volume := func(change func(v *v1alpha1.CacheVolume)) *v1alpha1.CacheVolume {
		v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}}}
		v.Status = v1alpha1.CacheVolumeStatus{
			AttachedNode: "n1", Epoch: 7, Authority: v1alpha1.AuthorityCache, Outdated: []string{"n2"}, DirtyBytes: 4096,
			Conditions: []metav1.Condition{{
				Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPeerLost, Message: "alone",
				LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
			}},
		}
		change(v)
		return v
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	left := volume(func(v *v1alpha1.CacheVolume) {
		v.Name, v.Spec.Replicas, v.Status.Outdated = "left", []string{"n1", "n9"}, []string{"n9"}
	})
	other := volume(func(v *v1alpha1.CacheVolume) { v.Name, v.Status.Conditions[0].Reason = "other", "OfAnotherVersion" })
	drained := volume(func(v *v1alpha1.CacheVolume) { v.Name, v.Status.Authority = "drained", v1alpha1.AuthorityCeph })
	whole := volume(func(v *v1alpha1.CacheVolume) { v.Name, v.Status.Outdated = "whole", nil })
	// No node has these two. Nobody fills the copy of the first; the host of the second's is gone.
	late := func(v *v1alpha1.CacheVolume) {
		v.Status.AttachedNode, v.Status.Conditions[0].Reason = "", v1alpha1.ReasonHostSilent
		v.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-2 * time.Hour))
	}
	detached := volume(func(v *v1alpha1.CacheVolume) { late(v); v.Name = "detached" })
	gone := volume(func(v *v1alpha1.CacheVolume) { late(v); v.Name, v.Status.Outdated = "gone", nil })
	records := fake.NewClientBuilder().WithScheme(scheme).WithObjects(group, left, other, drained, whole, detached, gone).Build()
	got, err := series(NewCopiesCollector(records, func() time.Time { return now }))
	if err != nil || len(got) != 3*len(redundancy.Reasons()) {
		t.Errorf("%v, %v", got, err)
	}
	for _, want := range []string{
		"escache_volumes_one_copy HostReinstalled 0", "escache_volumes_one_copy HostSilent 2",
		"escache_volumes_one_copy_oldest_seconds HostSilent 7200", "escache_volumes_one_copy HostLeftGroup 1", "escache_volumes_one_copy PeerLost 2",
		"escache_volumes_one_copy_dirty_bytes PeerLost 4096", "escache_volumes_one_copy_oldest_seconds PeerLost 3600",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if _, err := series(NewCopiesCollector(away{}, time.Now)); err == nil {
		t.Error("records that cannot be read look like volumes with two copies")
	}
}

// series returns a line for each series.
func series(c prometheus.Collector) (lines []string, err error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			lines = append(lines, fmt.Sprintf("%s %s %v", f.GetName(), m.GetLabel()[0].GetValue(), m.GetGauge().GetValue()))
		}
	}
	return lines, err
}

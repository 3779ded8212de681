package move

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// filledGroups are a group of three hosts with these volumes, and an empty one of six.
func filledGroups(t *testing.T, volumes int, more ...client.Object) client.WithWatch {
	t.Helper()
	old, fresh := plugintest.Group("old", "o1", "o2", "o3"), plugintest.Group("fresh", "f1", "f2", "f3", "f4", "f5", "f6")
	objects := []client.Object{old, fresh}
	for _, g := range []*v1alpha1.NodeGroup{old, fresh} {
		for _, node := range g.Spec.Nodes {
			g.Status.Members = append(g.Status.Members, v1alpha1.NodeGroupMember{Name: node, Ready: true, CacheCapacityBytes: 1 << 40})
		}
	}
	for i := range volumes {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v", i)}}
		v.Spec = v1alpha1.CacheVolumeSpec{Group: "old", Replicas: []string{fmt.Sprint("o", 1+i%3), fmt.Sprint("o", 1+(i+1)%3)}, CacheBytes: 10 << 30}
		v.Status = v1alpha1.CacheVolumeStatus{Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCeph}
		objects = append(objects, v)
	}
	return plugintest.Cluster(t, append(objects, more...)...)
}

func rebalanced(t *testing.T, api client.Client, empty string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	err := runRebalance(t.Context(), c, api, rebalanceFlags{dryRun: true, empty: empty})
	return strings.Join(strings.Fields(out.String()), " "), err
}

func TestRebalanceShowsTheMovesAndChangesNothing(t *testing.T) {
	api := filledGroups(t, 9)
	text, err := rebalanced(t, api, "")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "old 3 9 5.9% 3 2.0%", "fresh 6 0 0.0% 6 2.0%", "VOLUME CLAIM CACHE ATTACHED FROM TO ON", "- 10Gi - old fresh f",
		"6 moves make the groups even")
	if n := strings.Count(text, "old fresh f"); n != 6 {
		t.Errorf("%d moves:\n%s", n, text)
	}
	all := &v1alpha1.CacheVolumeList{}
	plugintest.Must(t, api.List(t.Context(), all))
	for i := range all.Items {
		if v := &all.Items[i]; strings.HasPrefix(v.Name, "v") && v.Spec.Group != "old" {
			t.Errorf("%s is in group %s", v.Name, v.Spec.Group)
		}
	}
	text, err = rebalanced(t, filledGroups(t, 1), "")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "The groups are even")
}

func TestRebalanceNamesWhatStaysAndWhy(t *testing.T) {
	api := filledGroups(t, 9)
	all := &v1alpha1.CacheVolumeList{}
	plugintest.Must(t, api.List(t.Context(), all))
	for i := range all.Items {
		v := &all.Items[i]
		if !strings.HasPrefix(v.Name, "v") || v.Name == "v3" {
			continue
		}
		v.Status.AttachedNode, v.Status.Epoch, v.Status.Authority = v.Spec.Replicas[0], 1, v1alpha1.AuthorityCache
		plugintest.Must(t, api.Update(t.Context(), v))
	}
	text, err := rebalanced(t, api, "")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "v3 - 10Gi - old fresh", "8 in group old: attached: stop the pod", "v0, v1, v2, v4, v5 and 3 more",
		"1 move brings the groups as close together")
}

func TestEmptyShowsWhereTheVolumesOfAGroupWouldGo(t *testing.T) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "tied"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "v1"}
	pv.Spec.StorageClassName = "old-only"
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data"}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "old-only"}, Parameters: map[string]string{"nodeGroups": "old"}}
	text, err := rebalanced(t, filledGroups(t, 4, pv, class), "old")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "v0 - 10Gi - old fresh", "1 in group old: it may be in group old only v1", "3 moves, and volumes that stay keep group old from being taken away: 1.")
	text, err = rebalanced(t, filledGroups(t, 4), "old")
	plugintest.Must(t, err)
	plugintest.Says(t, text, "Group old is empty after 4 moves.", "old 3 4 2.6% 0 0.0%")
	if _, err = rebalanced(t, filledGroups(t, 1), "zz"); err == nil || !strings.Contains(err.Error(), "zz: there is no such NodeGroup") {
		t.Errorf("got %v", err)
	}
}

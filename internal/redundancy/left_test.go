package redundancy

import (
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestWhatFollowsForAReplicaOutsideTheGroup(t *testing.T) {
	const node = "n4"
	for is, status := range map[string]v1alpha1.CacheVolumeStatus{
		"attached there":    {AttachedNode: node, Authority: v1alpha1.AuthorityCache, Outdated: []string{"n1"}},
		"not current there": {AttachedNode: "n1", Authority: v1alpha1.AuthorityCache, Outdated: []string{node}},
		"second copy there": {AttachedNode: "n1", Authority: v1alpha1.AuthorityCeph},
		"in use without a cache, in Ceph": {AttachedNode: "n9", Epoch: 3, Authority: v1alpha1.AuthorityCeph, Outdated: []string{"n1", node},
			Uncached: &v1alpha1.UncachedAttachment{Epoch: 3}},
		"detached, in Ceph": {Authority: v1alpha1.AuthorityCeph, Outdated: []string{node}},
		"detached, dirty":   {Authority: v1alpha1.AuthorityCache},
	} {
		v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Replicas: []string{"n1", node}}, Status: status}
		if got := FateOf(v, node); got.Is != is || got.Then == "" || !slices.Contains(Fates(), got) {
			t.Errorf("%s: %+v", is, got)
		}
	}
}

func TestNodesThatHaveLeft(t *testing.T) {
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Replicas: []string{"n1", "n4"}}}
	group := &v1alpha1.NodeGroup{Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	if left := Left(v, group); !slices.Equal(left, []string{"n4"}) {
		t.Errorf("left: %q", left)
	}
	v.Spec.Replicas = []string{"n3", "n1"}
	if left := Left(v, group); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

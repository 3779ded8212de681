package plugintest

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/preflight"
)

// Sample is a group of three hosts, a volume that has one copy and is being copied, one whose
// copies are lost, a read-only volume that one node has and another one is about to get, and an
// evacuation that goes on.
func Sample() *state.State {
	seen := metav1.NewTime(Noon.Add(-3 * time.Second))
	connectable, none := int64(3<<40), int64(0)
	group := v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}}
	group.Spec = v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}, CordonedNodes: []string{"n1"}}
	group.Status.Members = []v1alpha1.NodeGroupMember{
		{Name: "n1", CacheCapacityBytes: 1 << 40, CacheAllocatedBytes: 1 << 38, Volumes: 9, Primaries: 4,
			ConnectableBytes: &none, LastSeen: &seen},
		{Name: "n2", Ready: true, CacheCapacityBytes: 1 << 40, CacheAllocatedBytes: 1 << 39, DirtyBytes: 3 << 30, Volumes: 12, Primaries: 5,
			ConnectedBytes: 1 << 38, ConnectableBytes: &connectable, LastSeen: &seen,
			CertificateEnd: &metav1.Time{Time: Noon.AddDate(0, 0, 6)}},
		{Name: "n3", Message: "escached on node n3 does not answer: connection refused", CacheCapacityBytes: 1 << 40},
	}
	busy := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-busy", Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/data-app-0"},
		CreationTimestamp: metav1.NewTime(Noon.Add(-time.Hour)),
	}}
	busy.Spec = v1alpha1.CacheVolumeSpec{
		ClusterID: "ceph", Pool: "fast", Image: "escache-pvc-busy", Group: "rack1", Replicas: []string{"n2", "n3"}, SizeBytes: 10 << 30,
		CacheBytes: 1 << 30, CacheMode: v1alpha1.CacheModeWriteback,
	}
	busy.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, AttachedNode: "n2", Epoch: 4, Outdated: []string{"n3"},
		DirtyBytes: 3 << 30,
		Conditions: []metav1.Condition{
			{Type: "Redundant", Status: "False", Reason: "PeerLost", Message: "n2 goes on without the replica on n3"},
			{Type: "Healthy", Status: "True", Reason: "NoError"},
		},
		Resync: &v1alpha1.VolumeResync{
			Node: "n3", Percent: 31, LeftBytes: 700 << 20, BytesPerSecond: 56 << 20, RemainingSeconds: 12,
			Seen: metav1.NewTime(Noon.Add(-8 * time.Second)),
		},
	}
	lost := *busy.DeepCopy()
	lost.Name, lost.Annotations, lost.Spec.CacheEngine = "pvc-lost", nil, v1alpha1.CacheEngineLog
	lost.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, Authority: v1alpha1.AuthorityCache, Epoch: 2, Outdated: []string{"n3"}, DirtyBytes: 5 << 20,
		Conditions: []metav1.Condition{{
			Type: "Redundant", Status: "False", Reason: "PeerLost", Message: "n2 goes on without the replica on n3",
		}},
	}
	flush := v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate-n1"}}
	flush.Spec = v1alpha1.CacheFlushSpec{Node: "n1", Mode: "Drain"}
	flush.Status = v1alpha1.CacheFlushStatus{
		Phase: v1alpha1.FlushRunning, Percent: 40, TotalBytes: 10 << 30, LeftBytes: 6 << 30,
		Summary: v1alpha1.CacheFlushSummary{Left: "6Gi", Volumes: "1/3", Rate: "200Mi/s", Remaining: "31s"},
		Volumes: []v1alpha1.FlushedVolume{
			{Name: "pvc-a", Claim: "shop/a", Phase: v1alpha1.FlushDrained, TotalBytes: 1 << 30},
			{Name: "pvc-b", Claim: "shop/b", Phase: v1alpha1.FlushRunning, TotalBytes: 4 << 30, LeftBytes: 1 << 30},
			{Name: "pvc-c", Phase: v1alpha1.FlushPending, TotalBytes: 5 << 30, LeftBytes: 5 << 30, Message: "escached on n1: busy"},
		},
	}
	readOnly := v1alpha1.ReadOnlyVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-read", Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/to-read"},
		CreationTimestamp: metav1.NewTime(Noon.Add(-2 * time.Hour)),
	}}
	readOnly.Spec = v1alpha1.ReadOnlyVolumeSpec{
		ClusterID: "ceph", Pool: "fast", Image: "escache-pvc-read", SizeBytes: 10 << 30, Snapshot: "snapshot-monday",
	}
	readOnly.Status.Copies = []v1alpha1.ReadOnlyCopy{{Node: "n1", ImageID: "5e1f"}, {Node: "n3"}}
	return &state.State{
		Ends:   []preflight.End{{Of: "csi-controller", At: Noon.AddDate(0, 0, 9)}, {Of: "escache hosts", At: Noon.AddDate(9, 0, 0)}},
		Groups: []v1alpha1.NodeGroup{group}, Volumes: []v1alpha1.CacheVolume{busy, lost}, Flushes: []v1alpha1.CacheFlush{flush},
		ReadOnly: []v1alpha1.ReadOnlyVolume{readOnly},
	}
}

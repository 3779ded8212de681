package redundancy

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

var now = time.Unix(1_800_000_000, 0)

var group = &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}

// volume is attached to n1, and the copy on n2 is not current.
func volume(change func(v *v1alpha1.CacheVolume)) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}}}
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

func TestOneCopyHasAReason(t *testing.T) {
	same := func(*v1alpha1.CacheVolume) {}
	recorded := func(reason string) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) { v.Status.Conditions[0].Reason = reason }
	}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		e      Evidence
		want   string
		lost   string
	}{
		{"two copies", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil }, Evidence{}, v1alpha1.ReasonTwoCopies, ""},
		{"a former replica is outdated", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n9"} }, Evidence{}, v1alpha1.ReasonTwoCopies, ""},
		{"detached and in Ceph", func(v *v1alpha1.CacheVolume) {
			v.Status.AttachedNode, v.Status.Authority = "", v1alpha1.AuthorityCeph
		}, Evidence{}, v1alpha1.ReasonTwoCopies, ""},
		{"detached and dirty", func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode = "" }, Evidence{}, v1alpha1.ReasonPeerOutdated, "n2"},
		{"nobody knows why", same, Evidence{}, v1alpha1.ReasonPeerLost, "n2"},
		{"the holder's disk", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n1"} }, Evidence{}, v1alpha1.ReasonLocalDiskLost, "n1"},
		{"the peer's disk", same, Evidence{Asked: true, Loss: authority.DiskLost}, v1alpha1.ReasonPeerDiskLost, "n2"},
		{"other disks", same, Evidence{Asked: true, Loss: authority.OtherMachine}, v1alpha1.ReasonHostReinstalled, "n2"},
		{"no replica", same, Evidence{Asked: true, Loss: authority.ReplicaGone}, v1alpha1.ReasonReplicaMissing, "n2"},
		{"silent", same, Evidence{Asked: true, Silent: now}, v1alpha1.ReasonHostSilent, "n2"},
		{"deleted and silent", same, Evidence{Asked: true, Silent: now, Deleted: true}, v1alpha1.ReasonHostDeleted, "n2"},
		{"deleted, and not silent for long", same, Evidence{Asked: true, Deleted: true}, v1alpha1.ReasonPeerLost, "n2"},
		{"no link for long", same, Evidence{Asked: true, Away: true}, v1alpha1.ReasonCopyStaysAway, "n2"},
		{"left the group", func(v *v1alpha1.CacheVolume) {
			v.Spec.Replicas[1], v.Status.Outdated = "n9", []string{"n9"}
		}, Evidence{}, v1alpha1.ReasonHostLeft, "n9"},
		{"a new copy", func(v *v1alpha1.CacheVolume) {
			v.Status.Repair = &v1alpha1.ReplicaRepair{Lost: "n9", Substitute: "n2"}
		}, Evidence{}, v1alpha1.ReasonPeerOutdated, "n2"},
		{"the new copy's host is silent", func(v *v1alpha1.CacheVolume) {
			v.Status.Repair = &v1alpha1.ReplicaRepair{Lost: "n9", Substitute: "n2"}
		}, Evidence{Asked: true, Silent: now}, v1alpha1.ReasonHostSilent, "n2"},
		{"as recorded, for who asks nobody", recorded(v1alpha1.ReasonHostSilent), Evidence{}, v1alpha1.ReasonHostSilent, "n2"},
		{"recorded, and not so any more", recorded(v1alpha1.ReasonHostSilent), Evidence{Asked: true}, v1alpha1.ReasonPeerLost, "n2"},
		{"catching up", recorded(v1alpha1.ReasonPeerOutdated), Evidence{Asked: true}, v1alpha1.ReasonPeerOutdated, "n2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := Of(volume(tc.change), group, tc.e)
			onlyRecorded := tc.e == (Evidence{}) && tc.want == v1alpha1.ReasonHostSilent
			lasting := tc.lost != "" && tc.want != v1alpha1.ReasonPeerLost && tc.want != v1alpha1.ReasonPeerOutdated && !onlyRecorded
			if f.Proven != lasting {
				t.Errorf("proven: %v", f.Proven)
			}
			if f.Reason != tc.want || f.Lost != tc.lost || f.Whole() != (tc.lost == "") || f.Message == "" {
				t.Errorf("got %+v", f)
			}
		})
	}
}

func TestWhatIsExposedEndsInCeph(t *testing.T) {
	f := Of(volume(func(*v1alpha1.CacheVolume) {}), group, Evidence{})
	if f.ExposedBytes != 4096 || !f.Since.Equal(now.Add(-time.Hour)) || f.InCeph {
		t.Errorf("got %+v", f)
	}
	f = Of(volume(func(v *v1alpha1.CacheVolume) { v.Status.Authority = v1alpha1.AuthorityCeph }), group, Evidence{})
	if f.ExposedBytes != 0 || !f.InCeph || f.Whole() {
		t.Errorf("drained: %+v", f)
	}
}

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

// No pod has these volumes, and they are dirty.
func TestACopyOfAVolumeWithoutAPodIsLostToo(t *testing.T) {
	const noReason = "none"
	recorded := func(reason string, outdated ...string) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) {
			v.Status.AttachedNode, v.Status.Outdated, v.Status.Conditions[0].Reason = "", outdated, reason
			if reason == noReason {
				v.Status.Conditions = nil
			}
		}
	}
	flushing := func(change func(*v1alpha1.CacheVolume)) func(*v1alpha1.CacheVolume) {
		return func(v *v1alpha1.CacheVolume) {
			change(v)
			v.Status.AttachedNode, v.Status.FlushEpoch = "n1", v.Status.Epoch
		}
	}
	left := func(v *v1alpha1.CacheVolume) { recorded(noReason)(v); v.Spec.Replicas = []string{"n1", "n9"} }
	inCeph := func(v *v1alpha1.CacheVolume) {
		recorded(v1alpha1.ReasonHostSilent)(v)
		v.Status.Authority = v1alpha1.AuthorityCeph
	}
	hour, second := now.Add(-time.Hour), now.Add(-time.Second)
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolume)
		e      Evidence
		want   string
		lost   string
		proven bool
		since  time.Time
	}{
		{"both are current, and nobody was asked", recorded(noReason), Evidence{}, v1alpha1.ReasonTwoCopies, "", false, time.Time{}},
		{"both are current", recorded(noReason), Evidence{Asked: true}, v1alpha1.ReasonTwoCopies, "", false, time.Time{}},
		{"one is old", recorded(noReason, "n2"), Evidence{}, v1alpha1.ReasonPeerOutdated, "n2", true, time.Time{}},
		{"one is old, since an hour", recorded(v1alpha1.ReasonPeerLost, "n2"), Evidence{}, v1alpha1.ReasonPeerLost, "n2", true, hour},
		{"one was catching up", recorded(v1alpha1.ReasonPeerOutdated, "n2"), Evidence{}, v1alpha1.ReasonPeerOutdated, "n2", true, hour},
		{"one is old, and its host silent", recorded(v1alpha1.ReasonPeerLost, "n2"), Evidence{Asked: true, Silent: second, Lately: true},
			v1alpha1.ReasonHostSilent, "n2", true, hour},
		{"one is old, and its host back", recorded(v1alpha1.ReasonHostSilent, "n2"), Evidence{Asked: true}, v1alpha1.ReasonPeerOutdated, "n2", true, hour},
		{"a host is silent", recorded(noReason), Evidence{Asked: true, Node: "n1", Silent: hour}, v1alpha1.ReasonHostSilent, "n1", true, hour},
		{"a host is silent, and not for long", recorded(noReason), Evidence{Asked: true, Node: "n1", Silent: second, Lately: true},
			v1alpha1.ReasonHostSilent, "n1", false, second},
		{"a host is deleted", recorded(noReason), Evidence{Asked: true, Node: "n1", Silent: hour, Deleted: true}, v1alpha1.ReasonHostDeleted, "n1", true, hour},
		{"a disk", recorded(noReason), Evidence{Asked: true, Node: "n2", Loss: authority.DiskLost}, v1alpha1.ReasonPeerDiskLost, "n2", true, time.Time{}},
		{"a host came back empty", recorded(noReason), Evidence{Asked: true, Node: "n2", Loss: authority.OtherMachine},
			v1alpha1.ReasonHostReinstalled, "n2", true, time.Time{}},
		{"a host has left", left, Evidence{Asked: true, Node: "n9"}, v1alpha1.ReasonHostLeft, "n9", true, time.Time{}},
		{"csi-controller has found it", recorded(v1alpha1.ReasonHostSilent), Evidence{}, v1alpha1.ReasonHostSilent, "", false, hour},
		{"it has, and it is not so any more", recorded(v1alpha1.ReasonHostSilent), Evidence{Asked: true}, v1alpha1.ReasonTwoCopies, "", false, time.Time{}},
		{"it has, and the volume is being written back", flushing(recorded(v1alpha1.ReasonHostSilent)), Evidence{}, v1alpha1.ReasonHostSilent, "", false, hour},
		{"being written back, and the other one is old", flushing(recorded(v1alpha1.ReasonPeerLost, "n2")), Evidence{Asked: true},
			v1alpha1.ReasonPeerLost, "n2", true, hour},
		{"all is in Ceph now", inCeph, Evidence{}, v1alpha1.ReasonTwoCopies, "", false, time.Time{}},
		{"all is in Ceph now, and a host is silent", inCeph, Evidence{Asked: true, Node: "n1", Silent: hour}, v1alpha1.ReasonTwoCopies, "", false, time.Time{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := Of(volume(tc.change), group, tc.e)
			if f.Reason != tc.want || f.Lost != tc.lost || f.Proven != tc.proven || !f.Since.Equal(tc.since) || f.Message == "" {
				t.Errorf("got %+v", f)
			}
			if f.Whole() != (tc.want == v1alpha1.ReasonTwoCopies) || !f.Whole() && f.ExposedBytes != 4096 {
				t.Errorf("whole %v: %+v", f.Whole(), f)
			}
		})
	}
	// An attached volume is judged by what its holder has put on record.
	attached := volume(func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil })
	if f := Of(attached, group, Evidence{Asked: true, Node: "n2", Silent: hour}); !f.Whole() {
		t.Errorf("got %+v", f)
	}
	if !(Finding{}).Whole() {
		t.Error("what nobody has looked at has one copy")
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

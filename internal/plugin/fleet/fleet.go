// Package fleet makes of what is on record in Kubernetes what package placement decides by: groups with
// the room of their hosts, volumes with their places, and what ties volumes to their groups. It is pure.
package fleet

import (
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/internal/plugin/replacement"
)

// State returns the groups and volumes as placement sees them. The record does not say how many replicas
// a host takes at most, and what else is in its LVM volume group.
func State(groups []v1alpha1.NodeGroup, volumes []v1alpha1.CacheVolume) (*placement.State, error) {
	s := placement.New()
	for i := range groups {
		if err := s.SetGroup(groupOf(&groups[i], groups)); err != nil {
			return nil, err
		}
	}
	for i := range volumes {
		v := &volumes[i]
		if len(v.Spec.Replicas) != 2 {
			continue // the API server refuses such a record
		}
		s.SetVolume(placement.Volume{
			Name: v.Name, Group: v.Spec.Group, Primary: v.Spec.Replicas[0], Partner: v.Spec.Replicas[1],
			CacheBytes: v.Spec.ReservedCacheBytes(), Engine: engineOf(v),
		})
	}
	for i := range volumes {
		settle(s, &volumes[i])
	}
	return s, nil
}

// settle puts a volume that moves, or is asked to, where it will be. Without room there it stays.
func settle(s *placement.State, v *v1alpha1.CacheVolume) {
	at := placement.Volume{Name: v.Name, CacheBytes: v.Spec.ReservedCacheBytes(), Engine: engineOf(v)}
	switch m := v.Status.Move; {
	case m != nil && len(m.Replicas) == 2:
		at.Group, at.Primary, at.Partner = m.Group, m.Replicas[0], m.Replicas[1]
	case v.Spec.MoveTo != nil:
		to, err := s.Decide(placement.Request{
			Volume: at.Name, CacheBytes: at.CacheBytes, Engine: at.Engine, Groups: []string{v.Spec.MoveTo.Group},
		})
		if err != nil {
			return
		}
		at.Group, at.Primary, at.Partner = to.Group, to.Primary, to.Partner
	default:
		return
	}
	s.SetVolume(at)
}

// engineOf is the engine that a host must have for the volume, as placement names it.
func engineOf(v *v1alpha1.CacheVolume) string { return string(v.Spec.Engine().Recorded()) }

func groupOf(g *v1alpha1.NodeGroup, all []v1alpha1.NodeGroup) placement.Group {
	out := placement.Group{Name: g.Name, Cordoned: g.Closed()}
	for _, node := range g.Spec.Nodes {
		if owner := replacement.Owner(all, node); owner.Name != g.Name {
			continue // the older group has it
		}
		member := placement.Member{Name: node, Cordoned: slices.Contains(g.Spec.CordonedNodes, node)}
		at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == node })
		if at >= 0 {
			is := &g.Status.Members[at]
			member.Ready, member.CapacityBytes = is.Ready && !member.Cordoned, is.CacheCapacityBytes
			member.ConnectableBytes, member.Engines = is.ConnectableBytes, is.Engines
		}
		for _, stale := range g.Status.StaleReplicas {
			if stale.Node == node {
				member.OtherBytes += stale.CacheBytes
			}
		}
		out.Members = append(out.Members, member)
	}
	return out
}

// Fixed says why a volume cannot move to another group now, and what to do. It is empty if the volume can:
// no node has it. With later set, it is also empty for an attached volume, which moves when it is detached.
func Fixed(v *v1alpha1.CacheVolume, later bool) string {
	s := &v.Status
	switch {
	case !v.DeletionTimestamp.IsZero() || s.Phase == v1alpha1.VolumeDeleting:
		return "being deleted"
	case v.Spec.Release || s.Phase == v1alpha1.VolumeReleasing:
		return "being released"
	case v.ToMove():
		return "on its way to another group already, or waits for it: kubectl escache explain --volume=NAME"
	case meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionRecordBehindDisks):
		return "a host knows of a later attachment than the record: see docs/restore-etcd.md"
	case s.Phase == v1alpha1.VolumeConflict:
		return "nothing proves which of its copies counts: see kubectl escache adopt --all"
	case s.Phase != v1alpha1.VolumeReady:
		return "being created"
	case s.TrimAttached():
		return "being trimmed by csi-controller: wait"
	case s.FlushAttached():
		return "being written back by csi-controller: wait"
	case later && s.AttachedNode != "":
		return ""
	case s.Repair != nil:
		return "a lost copy is being replaced: wait"
	case s.AttachedNode != "":
		return "attached: stop the pod, or kubectl escache move NAME --group=GROUP has it move when it is detached"
	case authority.InCeph(v):
		return ""
	case len(authority.Current(v)) == 0:
		return "not attached, and no copy of its dirty data is current: kubectl escache explain --volume=NAME says what to do"
	default:
		return "" // it is written back first
	}
}

// AllowedGroups returns the groups in which a StorageClass places volumes; nil means all.
func AllowedGroups(class *storagev1.StorageClass) []string {
	var listed []string
	for name := range strings.SplitSeq(class.Parameters["nodeGroups"], ",") {
		if name = strings.TrimSpace(name); name != "" {
			listed = append(listed, name)
		}
	}
	terms := topology(class)
	switch {
	case terms == nil:
		return listed
	case listed == nil:
		return terms
	default:
		both := slices.DeleteFunc(listed, func(name string) bool { return !slices.Contains(terms, name) })
		return slices.Clip(both)
	}
}

// topology returns the groups that the class's allowedTopologies name; nil if it has none. A term without
// the driver's key fits no volume: its values count as none.
func topology(class *storagev1.StorageClass) []string {
	if len(class.AllowedTopologies) == 0 {
		return nil
	}
	groups := []string{}
	for _, term := range class.AllowedTopologies {
		for _, e := range term.MatchLabelExpressions {
			if e.Key == v1alpha1.TopologyKey {
				groups = append(groups, e.Values...)
			}
		}
	}
	return groups
}

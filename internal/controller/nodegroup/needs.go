package nodegroup

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
	"github.com/escache/escache-csi/internal/shortlist"
)

// needs is what a group is needed for.
type needs struct {
	volumes  []*v1alpha1.CacheVolume // of the group, by name
	replicas []v1alpha1.StaleReplica // that a host of the group has to remove
}

func (n needs) any() bool { return len(n.volumes)+len(n.replicas) > 0 }

// needsOf is pure. A stale replica counts while its host may come back: it does not on a host that has
// left the group, or that Kubernetes does not know any more.
func needsOf(group *v1alpha1.NodeGroup, volumes []*v1alpha1.CacheVolume, seen []sight) needs {
	n := needs{volumes: volumes}
	for _, stale := range group.Status.StaleReplicas {
		if slices.ContainsFunc(seen, func(s sight) bool { return s.name == stale.Node && !s.claimed && !s.deleted }) {
			n.replicas = append(n.replicas, stale)
		}
	}
	return n
}

// guarded sets the conditions that say what a deletion of the group waits for, and which hosts outside
// it have replicas. A condition that does not hold is removed.
func guarded(g *v1alpha1.NodeGroup, n needs) {
	set := func(kind, reason, message string) {
		if message == "" {
			meta.RemoveStatusCondition(&g.Status.Conditions, kind)
			return
		}
		meta.SetStatusCondition(&g.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message, ObservedGeneration: g.Generation,
		})
	}
	reason, message := blocked(g, n)
	set(v1alpha1.GroupDeletionBlocked, reason, message)
	set(v1alpha1.GroupFormerMembers, v1alpha1.ReasonReplicasOutside, outside(g, n.volumes))
}

// blocked says why a group that is marked as deleted is still there.
func blocked(g *v1alpha1.NodeGroup, n needs) (reason, message string) {
	const goesOn = "; until then nothing new is placed here, and what is here works"
	switch {
	case g.DeletionTimestamp.IsZero():
		return "", ""
	case len(n.volumes) > 0:
		return v1alpha1.ReasonVolumesLeft, fmt.Sprintf("it is being deleted, and kept because %s in it (%s): move them to other groups "+
			"(kubectl escache rebalance --apply --empty=%s), delete their claims, or give them up with kubectl escache release "+
			"--volume NAME%s", are(len(n.volumes)), names(n.volumes), g.Name, goesOn)
	case len(n.replicas) > 0:
		return v1alpha1.ReasonReplicasLeft, fmt.Sprintf("it is being deleted, and kept because replicas wait to be removed (%s): they "+
			"are when their hosts are back; if a host will never be back, kubectl delete node NAME%s", where(n.replicas), goesOn)
	default:
		return v1alpha1.ReasonVolumesLeft, "it is being deleted, and a volume is being created in it" + goesOn
	}
}

func are(volumes int) string {
	if volumes == 1 {
		return "1 volume is"
	}
	return fmt.Sprintf("%d volumes are", volumes)
}

func where(replicas []v1alpha1.StaleReplica) string {
	hosts := map[string]int{}
	for _, r := range replicas {
		hosts[r.Node]++
	}
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(hosts)) {
		parts = append(parts, fmt.Sprintf("%d on node %s", hosts[node], node))
	}
	return strings.Join(parts, ", ")
}

func names(volumes []*v1alpha1.CacheVolume) string {
	var out []string
	for _, v := range volumes {
		out = append(out, v.Name)
	}
	slices.Sort(out)
	return shortlist.Of(out)
}

// outside says which hosts that are not in the group any more have replicas of its volumes, and what
// follows for each kind of volume. It is empty if there are none.
func outside(g *v1alpha1.NodeGroup, volumes []*v1alpha1.CacheVolume) string {
	left := map[string][]*v1alpha1.CacheVolume{}
	for _, v := range volumes {
		if v.Spec.Group != g.Name {
			continue // it is on its way here, and has replicas where it comes from
		}
		for _, node := range redundancy.Left(v, g) {
			left[node] = append(left[node], v)
		}
	}
	var all []string
	for _, node := range slices.Sorted(maps.Keys(left)) {
		has := count(len(left[node]))
		what := []string{fmt.Sprintf("node %s is not in the group any more, and has replicas of %s: keep it on", node, has)}
		for _, fate := range redundancy.Fates() {
			of := slices.DeleteFunc(slices.Clone(left[node]), func(v *v1alpha1.CacheVolume) bool {
				return redundancy.FateOf(v, node) != fate
			})
			if len(of) > 0 {
				what = append(what, fate.Is+" ("+names(of)+"): "+fate.Then)
			}
		}
		all = append(all, strings.Join(what, "; "))
	}
	return strings.Join(all, ". ")
}

func count(volumes int) string {
	if volumes == 1 {
		return "1 volume"
	}
	return fmt.Sprintf("%d volumes", volumes)
}

// byName sorts the volumes of a list, which stay where they are.
func byName(list []v1alpha1.CacheVolume) []*v1alpha1.CacheVolume {
	out := make([]*v1alpha1.CacheVolume, 0, len(list))
	for i := range list {
		out = append(out, &list[i])
	}
	slices.SortFunc(out, func(a, b *v1alpha1.CacheVolume) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

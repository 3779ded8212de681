// Package fallback lets pods run outside their volume's group, without a cache, while no host of the group
// takes pods. That is for volumes whose record has uncachedFallback.
//
// Kubernetes has no node affinity of a PersistentVolume that is only preferred, and none that can be
// changed. So the PersistentVolume of such a volume allows two kinds of nodes from the start: those of its
// group, and those with a label that names the group (v1alpha1.UncachedKey). csi-controller sets that label
// on the hosts of all other groups, which have csi-node and escached too, while the volume's own group has
// no host that takes pods. Otherwise no node has it, and the scheduler has no choice but the group.
//
// A node keeps the label while it has a volume of the group without a cache: the kubelet checks the
// affinity again when it is restarted.
package fallback

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Fleet is what the decision is made of.
type Fleet struct {
	Nodes  []corev1.Node
	Groups []v1alpha1.NodeGroup
	// Wanted are the groups with volumes that may be attached without a cache.
	Wanted map[string]bool
	// Held has, by node, the groups of volumes that the node has without a cache.
	Held map[string][]string
}

// Decision says what to change.
type Decision struct {
	// Closed are the groups of which no host takes pods, and that pods may leave.
	Closed map[string]bool
	// Labels has, for each node that has others now, the groups whose label it is to have, sorted.
	Labels map[string][]string
}

// Decide is pure. since says since when a group has been seen without a host that takes pods. A group that
// nodes are labelled for already was found so before, maybe by an earlier leader, unless they have the label for a volume.
func Decide(f Fleet, since map[string]time.Time, patience time.Duration, now time.Time) Decision {
	d := Decision{Closed: map[string]bool{}, Labels: map[string][]string{}}
	home := map[string]string{}
	for _, g := range f.Groups {
		for _, node := range g.Spec.Nodes {
			home[node] = g.Name
		}
		begun := since[g.Name]
		waited := !begun.IsZero() && now.Sub(begun) >= patience
		if f.Wanted[g.Name] && Closed(g, f.Nodes) && (waited || f.labelled(g.Name)) {
			d.Closed[g.Name] = true
		}
	}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		groups := slices.Clone(f.Held[n.Name])
		for group := range d.Closed {
			if of := home[n.Name]; of != "" && of != group {
				groups = append(groups, group)
			}
		}
		slices.Sort(groups)
		if groups = slices.Compact(groups); !slices.Equal(groups, labels(n)) {
			d.Labels[n.Name] = groups
		}
	}
	return d
}

// Closed reports whether no host of the group takes pods.
func Closed(g v1alpha1.NodeGroup, nodes []corev1.Node) bool {
	return !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return slices.Contains(g.Spec.Nodes, n.Name) && takesPods(&n) })
}

// takesPods reports whether Kubernetes may start pods on the node. Only Kubernetes' own taints count:
// the pods of a group may tolerate all others.
func takesPods(n *corev1.Node) bool {
	if n.Spec.Unschedulable || !n.DeletionTimestamp.IsZero() {
		return false
	}
	for _, taint := range n.Spec.Taints {
		if strings.HasPrefix(taint.Key, "node.kubernetes.io/") && taint.Effect != corev1.TaintEffectPreferNoSchedule {
			return false
		}
	}
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// labels returns the groups whose label the node has, sorted.
func labels(n *corev1.Node) []string {
	var groups []string
	for key := range n.Labels {
		if group, is := v1alpha1.UncachedKeyOf(key); is {
			groups = append(groups, group)
		}
	}
	slices.Sort(groups)
	return groups
}

// labelled reports whether a node has the label of the group, and not because it has a volume of that.
func (f Fleet) labelled(group string) bool {
	return slices.ContainsFunc(f.Nodes, func(n corev1.Node) bool {
		return n.Labels[v1alpha1.UncachedKey(group)] != "" && !slices.Contains(f.Held[n.Name], group)
	})
}

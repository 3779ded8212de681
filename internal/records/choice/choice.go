// Package choice chooses which groups, hosts, volumes and flushes are shown, and in which order. It
// is pure.
package choice

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Filter chooses objects. Its zero value chooses all.
type Filter struct {
	// Groups and Nodes are names; empty for all.
	Groups, Nodes []string
	// Namespace is that of the claims; "" for all.
	Namespace string
	// Problems chooses what has a problem.
	Problems bool
}

// Everything reports whether the filter leaves nothing out.
func (f Filter) Everything() bool {
	return len(f.Groups) == 0 && len(f.Nodes) == 0 && f.Namespace == "" && !f.Problems
}

// Unknown returns an error that names a group or host of the filter that is not on record, so that a
// typing error does not look like a group in which nothing is wrong.
func (f Filter) Unknown(all Objects) error {
	has := func(node string) bool {
		return slices.ContainsFunc(all.Groups, func(g v1alpha1.NodeGroup) bool { return slices.Contains(g.Spec.Nodes, node) }) ||
			slices.ContainsFunc(all.Volumes, func(v v1alpha1.CacheVolume) bool { return hasNode(&v, node) }) ||
			slices.ContainsFunc(all.ReadOnly, func(v v1alpha1.ReadOnlyVolume) bool { return v.CopyOn(node) != nil })
	}
	for _, name := range f.Groups {
		if !slices.ContainsFunc(all.Groups, func(g v1alpha1.NodeGroup) bool { return g.Name == name }) {
			return fmt.Errorf("there is no NodeGroup %s; kubectl get nodegroups lists them", name)
		}
	}
	for _, name := range f.Nodes {
		if !has(name) {
			return fmt.Errorf("node %s is in no NodeGroup, and has no volume; kubectl get nodegroups lists the nodes", name)
		}
	}
	return nil
}

// Volume reports whether a volume is chosen. claim is NAMESPACE/NAME of its claim. It does not look at
// Problems.
func (f Filter) Volume(v *v1alpha1.CacheVolume, claim string) bool {
	namespace, _, _ := strings.Cut(claim, "/")
	return chosen(f.Groups, v.Spec.Group) && (f.Namespace == "" || namespace == f.Namespace) &&
		(len(f.Nodes) == 0 || slices.ContainsFunc(f.Nodes, func(node string) bool { return hasNode(v, node) }))
}

// ReadOnly reports whether a read-only volume is chosen, which is in no group. claim is NAMESPACE/NAME of its
// claim. It does not look at Problems.
func (f Filter) ReadOnly(v *v1alpha1.ReadOnlyVolume, claim string) bool {
	namespace, _, _ := strings.Cut(claim, "/")
	return len(f.Groups) == 0 && (f.Namespace == "" || namespace == f.Namespace) &&
		(len(f.Nodes) == 0 || slices.ContainsFunc(f.Nodes, func(node string) bool { return v.CopyOn(node) != nil }))
}

// Group reports whether a group is chosen. has says whether one of the chosen volumes is in it. It does
// not look at Problems.
func (f Filter) Group(g *v1alpha1.NodeGroup, has bool) bool {
	return chosen(f.Groups, g.Name) && (f.Namespace == "" || has) &&
		(len(f.Nodes) == 0 || slices.ContainsFunc(g.Spec.Nodes, f.Host))
}

// Host reports whether the hosts of that name are chosen, in a group that is.
func (f Filter) Host(node string) bool { return chosen(f.Nodes, node) }

// Flush reports whether a flush is chosen. volumes and claims are those that are chosen, groupOf is the
// group of a host.
func (f Filter) Flush(c *v1alpha1.CacheFlush, volumes, claims map[string]bool, groupOf map[string]string) bool {
	if f.Everything() {
		return true
	}
	s := &c.Spec
	if p := s.PersistentVolumeClaim; p != nil && (claims[p.Namespace+"/"+p.Name] || f.Namespace == p.Namespace) {
		return true
	}
	if f.Namespace == "" && len(f.Groups) > 0 && slices.Contains(f.Groups, cmp.Or(s.NodeGroup, groupOf[s.Node])) && f.Host(s.Node) {
		return true
	}
	return f.Namespace == "" && len(f.Groups) == 0 && slices.Contains(f.Nodes, s.Node) || volumes[s.Volume] ||
		slices.ContainsFunc(c.Status.Volumes, func(v v1alpha1.FlushedVolume) bool { return volumes[v.Name] })
}

func chosen(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }

// hasNode reports whether a node has the volume, or a replica of it.
func hasNode(v *v1alpha1.CacheVolume, node string) bool {
	return v.Status.AttachedNode == node || v.Spec.HasReplica(node)
}

package choice

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// Objects are groups, volumes, read-only volumes and flushes, and what is wrong with them.
type Objects struct {
	Groups   []v1alpha1.NodeGroup
	Volumes  []v1alpha1.CacheVolume
	ReadOnly []v1alpha1.ReadOnlyVolume
	Flushes  []v1alpha1.CacheFlush
	Troubles []trouble.Trouble
	Faults   trouble.Faults // of all objects, also of those that are not chosen
}

// Choose returns what fits the filter; a filter that leaves nothing out returns the lists that it was given. claim returns
// NAMESPACE/NAME of a volume's claim.
func (f Filter) Choose(all Objects, claim func(metav1.Object) string) Objects {
	if f.Everything() {
		return all
	}
	volumes, claims, groups, groupOf := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]string{}
	out := Objects{Faults: all.Faults}
	for i := range all.Volumes {
		one := &all.Volumes[i]
		if of := claim(one); f.Volume(one, of) {
			volumes[one.Name], claims[of], groups[one.Spec.Group] = true, true, true
			if !f.Problems || all.Faults.Wrong(trouble.Volume, one.Name) {
				out.Volumes = append(out.Volumes, *one)
			}
		}
	}
	out.ReadOnly = f.readOnly(all, claim, volumes)
	hosts := map[string]bool{}
	for i := range all.Groups {
		g := &all.Groups[i]
		for _, node := range g.Spec.Nodes {
			groupOf[node] = g.Name
		}
		if !f.Group(g, groups[g.Name]) {
			continue
		}
		groups[g.Name] = true
		for _, node := range g.Spec.Nodes {
			hosts[node] = hosts[node] || f.Host(node)
		}
		shown := func(node string) bool { return f.HostShown(node, all.Faults) }
		if !f.Problems || all.Faults.Wrong(trouble.Group, g.Name) || slices.ContainsFunc(g.Spec.Nodes, shown) {
			out.Groups = append(out.Groups, *g)
		}
	}
	flushes := map[string]bool{}
	for i := range all.Flushes {
		if one := &all.Flushes[i]; f.Flush(one, volumes, claims, groupOf) {
			flushes[one.Name] = true
			if !f.Problems || all.Faults.Wrong(trouble.Flush, one.Name) {
				out.Flushes = append(out.Flushes, *one)
			}
		}
	}
	kept := map[string]map[string]bool{trouble.Volume: volumes, trouble.Host: hosts, trouble.Flush: flushes, trouble.Group: groups}
	out.Troubles = slices.DeleteFunc(slices.Clone(all.Troubles), func(t trouble.Trouble) bool {
		return t.Kind != trouble.Driver && !kept[t.Kind][t.Name]
	})
	return out
}

// readOnly returns the read-only volumes that fit. It adds those to volumes that are chosen, whether
// or not they have a problem.
func (f Filter) readOnly(all Objects, claim func(metav1.Object) string, volumes map[string]bool) []v1alpha1.ReadOnlyVolume {
	var out []v1alpha1.ReadOnlyVolume
	for i := range all.ReadOnly {
		one := &all.ReadOnly[i]
		if !f.ReadOnly(one, claim(one)) {
			continue
		}
		volumes[one.Name] = true
		if !f.Problems || all.Faults.Wrong(trouble.Volume, one.Name) {
			out = append(out, *one)
		}
	}
	return out
}

// HostShown reports whether a host of a chosen group is shown.
func (f Filter) HostShown(node string, faults trouble.Faults) bool {
	return f.Host(node) && (!f.Problems || faults.Wrong(trouble.Host, node))
}

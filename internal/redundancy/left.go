package redundancy

import (
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Left returns the nodes with a replica of the volume that are not in its group any more.
func Left(v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup) []string {
	return slices.DeleteFunc(slices.Clone(v.Spec.Replicas), func(node string) bool { return slices.Contains(group.Spec.Nodes, node) })
}

// Fate is what becomes of a volume that has a replica on a node outside its group. Both texts are for
// people.
type Fate struct {
	// Is says in what state the volume is.
	Is string
	// Then says what happens by itself, or what somebody has to do before the host is switched off.
	Then string
}

// fates lists all fates. A volume has the first one that fits.
func fates() []struct {
	Fate

	fits func(v *v1alpha1.CacheVolume, node string) bool
} {
	attached := func(v *v1alpha1.CacheVolume) bool { return v.Status.AttachedNode != "" }
	return []struct {
		Fate

		fits func(v *v1alpha1.CacheVolume, node string) bool
	}{
		{
			Fate{"in use without a cache, in Ceph", "nothing: it gets both copies in the group when a host there gets it"},
			func(v *v1alpha1.CacheVolume, _ string) bool {
				return v.Status.UncachedAttached() && authority.InCeph(v)
			},
		},
		{
			Fate{"attached there", "its pod goes on; restart it, and it runs on a host of the group"},
			func(v *v1alpha1.CacheVolume, node string) bool { return v.Status.AttachedNode == node },
		},
		{
			Fate{"not current there", "repair creates another copy in the group, and it writes through meanwhile"},
			func(v *v1alpha1.CacheVolume, node string) bool { return attached(v) && v.Status.IsOutdated(node) },
		},
		{
			Fate{"second copy there", "restart its pod, and it gets another copy in the group; if the host is lost before, " +
				"repair creates that copy, and it writes through meanwhile"},
			func(v *v1alpha1.CacheVolume, _ string) bool { return attached(v) },
		},
		{
			Fate{"detached, in Ceph", "nothing: it gets both copies in the group when it is attached"},
			func(v *v1alpha1.CacheVolume, _ string) bool { return authority.InCeph(v) },
		},
		{
			Fate{"detached, dirty", "kubectl escache flush --volume=NAME --wait writes it back, without a pod; it may need this copy"},
			func(*v1alpha1.CacheVolume, string) bool { return true },
		},
	}
}

// Fates returns every fate, in the order in which they are listed.
func Fates() []Fate {
	var all []Fate
	for _, f := range fates() {
		all = append(all, f.Fate)
	}
	return all
}

// FateOf returns the fate of a volume that has a replica on a node outside its group.
func FateOf(v *v1alpha1.CacheVolume, node string) Fate {
	for _, f := range fates() {
		if f.fits(v, node) {
			return f.Fate
		}
	}
	return Fate{}
}

package choice

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// compare orders two volumes; claim returns NAMESPACE/NAME of a volume's claim.
type compare func(a, b *v1alpha1.CacheVolume, claim func(metav1.Object) string) int

// orders are all there are. Sizes come with the largest first, ages with the oldest first.
func orders() map[string]compare {
	type v = *v1alpha1.CacheVolume
	type of = func(metav1.Object) string
	return map[string]compare{
		"name":  func(_, _ v, _ of) int { return 0 },
		"claim": func(a, b v, claim of) int { return cmp.Compare(claim(a), claim(b)) },
		"group": func(a, b v, _ of) int { return cmp.Compare(a.Spec.Group, b.Spec.Group) },
		"host":  func(a, b v, _ of) int { return cmp.Compare(a.Status.AttachedNode, b.Status.AttachedNode) },
		"dirty": func(a, b v, _ of) int { return cmp.Compare(b.Status.DirtyBytes, a.Status.DirtyBytes) },
		"size":  func(a, b v, _ of) int { return cmp.Compare(b.Spec.SizeBytes, a.Spec.SizeBytes) },
		"cache": func(a, b v, _ of) int { return cmp.Compare(b.Spec.CacheBytes, a.Spec.CacheBytes) },
		"age":   func(a, b v, _ of) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) },
	}
}

// Orders returns what volumes can be sorted by.
func Orders() []string { return slices.Sorted(maps.Keys(orders())) }

// Sort sorts volumes by one of Orders, and those that are equal in it by name. "" is by name.
func Sort(volumes []v1alpha1.CacheVolume, by string, claim func(metav1.Object) string) error {
	order, ok := orders()[cmp.Or(by, "name")]
	if !ok {
		return fmt.Errorf("%q is none of %s", by, strings.Join(Orders(), ", "))
	}
	slices.SortFunc(volumes, func(a, b v1alpha1.CacheVolume) int {
		return cmp.Or(order(&a, &b, claim), cmp.Compare(a.Name, b.Name))
	})
	return nil
}

// RepairStep orders the steps of a repair: one that is being copied has the highest number, one that
// waits the lowest.
func RepairStep(step string) int {
	return slices.Index([]string{"Waiting", "Draining", "Beginning", "Replacing", "Finishing", "Copying"}, step)
}

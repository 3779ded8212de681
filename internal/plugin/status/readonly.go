package status

import (
	"cmp"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// readOnly shows the volumes that pods on many nodes read, where there are many those with a
// problem first.
func (v *View) readOnly(row func(...string), wide bool) {
	if len(v.ReadOnly) == 0 {
		return
	}
	head := []string{"READ-ONLY", "CLAIM", "SNAPSHOT", "SIZE", "NODES"}
	if wide {
		head = append(head, "IMAGES", "AGE")
	}
	if wide || v.filter.Problems {
		head = append(head, "PROBLEM")
	}
	shown := slices.Clone(v.ReadOnly)
	if v.short && len(shown) > maxOthers {
		slices.SortStableFunc(shown, func(a, b v1alpha1.ReadOnlyVolume) int {
			return count(v.faults.Wrong(trouble.Volume, b.Name)) - count(v.faults.Wrong(trouble.Volume, a.Name))
		})
	}
	rows := make([][]string, 0, len(shown))
	for i := range shown {
		rows = append(rows, v.readOnlyRow(&shown[i], wide))
	}
	row("")
	v.others(row, head, rows)
}

func (v *View) readOnlyRow(of *v1alpha1.ReadOnlyVolume, wide bool) []string {
	var nodes []string
	for _, has := range of.Status.Copies {
		if has.ImageID == "" {
			has.Node += " (no image yet)"
		}
		nodes = append(nodes, has.Node)
	}
	cells := []string{
		of.Name, v.Uses.ClaimOf(of), of.Spec.Snapshot, v1alpha1.HumanBytes(of.Spec.SizeBytes), cmp.Or(strings.Join(nodes, ","), "-"),
	}
	if wide {
		cells = append(cells, of.Spec.Pool+"/"+of.Spec.Image+"-*", age(of.CreationTimestamp, v.Now))
	}
	if wide || v.filter.Problems {
		cells = append(cells, cmp.Or(strings.Join(v.faults.Of(trouble.Volume, of.Name).Reasons, ","), "-"))
	}
	return cells
}

package status

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/resync"
)

// repairs shows the volumes that get a second copy, those first that are being copied.
func (v *View) repairs(row func(...string)) {
	var rows [][]string
	for i := range v.Volumes {
		of := &v.Volumes[i]
		c := meta.FindStatusCondition(of.Status.Conditions, v1alpha1.ConditionRepairing)
		if c == nil || c.Status != metav1.ConditionTrue {
			continue
		}
		cells := []string{of.Name, c.Reason, "-", "-", "-", c.Message}
		if r := of.Status.Repair; r != nil {
			cells = []string{of.Name, c.Reason, r.Lost, cmp.Or(r.Substitute, "-"), age(r.Since, v.Now), c.Message}
		}
		rows = append(rows, cells)
	}
	if len(rows) == 0 {
		return
	}
	slices.SortStableFunc(rows, func(a, b []string) int { return cmp.Compare(choice.RepairStep(b[1]), choice.RepairStep(a[1])) })
	row("")
	v.others(row, []string{"REPAIR", "STEP", "LOST", "ONTO", "FOR", "PROGRESS"}, rows)
}

// others prints a table that is long only if much is being done.
func (v *View) others(row func(...string), head []string, rows [][]string) {
	more := 0
	if v.short {
		more = max(0, len(rows)-maxOthers)
	}
	v.limited(row, head, rows[:len(rows)-more], more, "")
}

// resyncs shows the copies that become current now, after an interruption or in a repair.
func (v *View) resyncs(row func(...string)) {
	var rows [][]string
	for _, r := range resync.All(v.Volumes) {
		seen := "now"
		if r.Old(v.Now) {
			seen = console.Ago(&metav1.Time{Time: r.Seen}, v.Now)
		}
		rows = append(rows, []string{r.Volume, r.Onto, fmt.Sprintf("%d%%", r.Percent), r.Left, r.Rate, r.Remaining, seen})
	}
	if len(rows) == 0 {
		return
	}
	row("")
	v.others(row, []string{"RESYNC", "ONTO", "DONE", "LEFT", "RATE", "REMAINING", "SEEN"}, rows)
}

func (v *View) flushRows(row func(...string)) {
	var rows [][]string
	for i := range v.Flushes {
		f := &v.Flushes[i].Status
		rows = append(rows, []string{
			v.Flushes[i].Name, string(v.Flushes[i].Spec.Mode), cmp.Or(string(f.Phase), "Pending"), fmt.Sprintf("%d%%", f.Percent),
			cmp.Or(f.Summary.Volumes, "-"), cmp.Or(f.Summary.Left, "-"), cmp.Or(f.Summary.Rate, "-"), cmp.Or(f.Summary.Remaining, "-"),
		})
	}
	if len(rows) == 0 {
		return
	}
	row("")
	v.others(row, []string{"FLUSH", "MODE", "PHASE", "DONE", "VOLUMES", "LEFT", "RATE", "REMAINING"}, rows)
}

package status

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/redundancy"
)

// How many rows a table has if nothing is chosen.
const (
	maxHosts   = 60
	maxVolumes = 100
	maxOthers  = 20
)

// PrintTables prints the totals and the tables.
func (v *View) PrintTables(out io.Writer, wide bool) error {
	row, flush := console.Table(out)
	row("")
	if len(v.Groups) == 0 && v.filter.Everything() {
		row("no NodeGroups: create one of 3 to 16 hosts, then volumes can be placed")
	} else {
		v.totals(row)
		v.hosts(row, wide)
	}
	if len(v.Volumes) == 0 {
		row("")
		row("no volumes" + v.chosen())
	} else {
		row("")
		v.volumeRows(row, wide)
	}
	v.readOnly(row, wide)
	v.repairs(row)
	v.resyncs(row)
	v.flushRows(row)
	return flush()
}

// chosen follows what there is none of.
func (v *View) chosen() string {
	if v.filter.Everything() {
		return ""
	}
	return " that fit"
}

// totals sums up what is chosen.
func (v *View) totals(row func(...string)) {
	var attached, one, repairing int
	var dirty int64
	for i := range v.Volumes {
		is := &v.Volumes[i]
		dirty += is.Status.DirtyBytes
		attached += count(is.Status.AttachedNode != "")
		one += count(!redundancy.Of(is, v.Group(is), redundancy.Evidence{}).Whole())
		repairing += count(meta.IsStatusConditionTrue(is.Status.Conditions, v1alpha1.ConditionRepairing))
	}
	volumes := fmt.Sprint(len(v.Volumes))
	if !v.filter.Everything() {
		volumes += fmt.Sprintf(" of %d", v.read)
	}
	parts := []string{volumes, fmt.Sprintf("%d attached", attached), v1alpha1.HumanBytes(dirty) + " dirty"}
	for text, n := range map[string]int{"%d with one copy": one, "%d in repair": repairing} {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(text, n))
		}
	}
	slices.Sort(parts[3:])
	row("Volumes:  " + strings.Join(parts, ", "))
	v.hostTotals(row)
	if v.Snapshots != nil && *v.Snapshots > 0 && v.filter.Everything() {
		row(fmt.Sprintf("Snapshots: %d", *v.Snapshots))
	}
	if len(v.ReadOnly) > 0 && v.filter.Everything() {
		row("Read-only: " + trouble.Count(len(v.ReadOnly), "volume"))
	}
	row("")
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// limited prints rows, how many more there are, and what else is left out.
func (v *View) limited(row func(...string), head []string, rows [][]string, more int, left string) {
	if len(rows) > 0 {
		row(head...)
	}
	for _, cells := range rows {
		row(cells...)
	}
	if more > 0 {
		left = strings.TrimPrefix(fmt.Sprintf("%s; %d more", left, more), "; ")
	}
	if left != "" {
		row("… " + left)
		row("  --all shows all; --group, --node, -n and --problems choose")
	}
}

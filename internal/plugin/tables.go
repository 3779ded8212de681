package plugin

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/redundancy"
)

// How many rows a table has if nothing is chosen.
const (
	maxHosts   = 60
	maxVolumes = 100
	maxOthers  = 20
)

func (v *view) printTables(out io.Writer, wide bool) error {
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
	v.repairs(row)
	v.resyncs(row)
	v.flushRows(row)
	return flush()
}

// chosen follows what there is none of.
func (v *view) chosen() string {
	if v.filter.Everything() {
		return ""
	}
	return " that fit"
}

// totals sums up what is chosen.
func (v *view) totals(row func(...string)) {
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
	row("")
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// hostTotals sums up the hosts that are chosen, and the versions of the driver.
func (v *view) hostTotals(row func(...string)) {
	var hosts, ready int
	var capacity, allocated int64
	versions := map[string][]string{}
	for i := range v.Groups {
		for _, node := range v.Groups[i].Spec.Nodes {
			if !v.hostShown(node) {
				continue
			}
			hosts++
			m, ok := member(&v.Groups[i], node)
			if !ok {
				continue
			}
			ready += count(m.Ready)
			capacity, allocated = capacity+m.CacheCapacityBytes, allocated+m.CacheAllocatedBytes
			if m.Version != "" {
				versions[m.Version] = append(versions[m.Version], node)
			}
		}
	}
	text := fmt.Sprintf("Hosts:    %d in %s, %d ready", hosts, trouble.Count(len(v.Groups), "group"), ready)
	if capacity > 0 {
		text += fmt.Sprintf(", %d%% of %s cache given to volumes", percent(allocated, capacity), v1alpha1.HumanBytes(capacity))
	}
	row(text)
	var programs []string
	for _, w := range v.Workloads {
		if w.Version != "" {
			programs = append(programs, w.Program()+" "+w.Version+rollout(w.Updated, w.Pods))
		}
	}
	if len(versions) > 0 {
		programs = append(programs, "escached "+trouble.Versions(versions))
	}
	if len(programs) > 0 {
		row("Versions: " + strings.Join(programs, "; "))
	}
	if line := certificateLine(v.AllEnds(), v.now); line != "" {
		row(line)
	}
}

// certificateLine says when the first certificate ends; "" if none is known.
func certificateLine(ends []preflight.End, now time.Time) string {
	if len(ends) == 0 {
		return ""
	}
	first := slices.MinFunc(ends, func(a, b preflight.End) int { return a.At.Compare(b.At) })
	return fmt.Sprintf("Certificates: %d, the first (%s) %s", len(ends), first.Of, trouble.Ends(first.At, now))
}

// rollout says how far an upgrade is, unless it is over.
func rollout(updated, pods int32) string {
	if updated >= pods {
		return ""
	}
	return fmt.Sprintf(" (on %d of %d pods)", updated, pods)
}

func percent(part, all int64) int64 { return int64(100 * float64(part) / float64(all)) }

func member(g *v1alpha1.NodeGroup, node string) (v1alpha1.NodeGroupMember, bool) {
	at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == node })
	if at < 0 {
		return v1alpha1.NodeGroupMember{}, false
	}
	return g.Status.Members[at], true
}

func (v *view) hosts(row func(...string), wide bool) {
	many := v.short && v.hostCount() > maxHosts
	var rows [][]string
	well := 0
	for i := range v.Groups {
		g := &v.Groups[i]
		for _, name := range g.Spec.Nodes {
			if !v.hostShown(name) {
				continue
			}
			cells := []string{g.Name, name, "Unknown", "-", "-", "-", "-", "-", "-", "-", "-"}
			m, known := member(g, name)
			if known {
				cells = []string{
					g.Name, name, memberState(g, m), v1alpha1.HumanBytes(m.CacheCapacityBytes), filled(m),
					v1alpha1.HumanBytes(m.DirtyBytes), fmt.Sprint(m.Volumes), fmt.Sprint(m.Primaries), lastSeen(m, v.now),
					memory(m), cmp.Or(m.Version, "-"),
				}
			}
			if !wide {
				cells = cells[:len(cells)-2]
			}
			ready := cells[2] == "Ready" && !v.faults.Wrong(trouble.Host, name)
			well += count(ready)
			if !ready || !many {
				rows = append(rows, cells)
			}
		}
	}
	head := []string{"GROUP", "HOST", "STATE", "CACHE", "FILLED", "DIRTY", "REPLICAS", "ATTACHED", "SEEN"}
	if wide {
		head = append(head, "MEMORY", "VERSION")
	}
	left, more := "", 0
	if many {
		left, more = fmt.Sprintf("%d hosts that are Ready are left out", well), max(0, len(rows)-maxHosts)
	}
	v.limited(row, head, rows[:len(rows)-more], more, left)
}

// hostCount is how many hosts the groups have.
func (v *view) hostCount() int {
	n := 0
	for i := range v.Groups {
		n += len(v.Groups[i].Spec.Nodes)
	}
	return n
}

// limited prints rows, how many more there are, and what else is left out.
func (v *view) limited(row func(...string), head []string, rows [][]string, more int, left string) {
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

func memberState(g *v1alpha1.NodeGroup, m v1alpha1.NodeGroupMember) string {
	switch {
	case g.Spec.Cordoned, slices.Contains(g.Spec.CordonedNodes, m.Name):
		return "Cordoned"
	case m.Ready:
		return "Ready"
	default:
		return "NotReady"
	}
}

func filled(m v1alpha1.NodeGroupMember) string {
	if m.CacheCapacityBytes <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", percent(m.CacheAllocatedBytes, m.CacheCapacityBytes))
}

// memory is how much of the caches for which the host has memory is connected.
func memory(m v1alpha1.NodeGroupMember) string {
	switch {
	case m.ConnectableBytes == nil:
		return "-"
	case *m.ConnectableBytes <= 0:
		return "100%"
	}
	return fmt.Sprintf("%d%%", percent(m.ConnectedBytes, *m.ConnectableBytes))
}

// seenPeriod is longer than the interval at which the driver records that a host still answers. It
// records at once that a host has stopped answering.
const seenPeriod = 2 * time.Minute

func lastSeen(m v1alpha1.NodeGroupMember, now time.Time) string {
	if m.Ready && m.LastSeen != nil && now.Sub(m.LastSeen.Time) < seenPeriod {
		return "now"
	}
	return console.Ago(m.LastSeen, now)
}

func (v *view) volumeRows(row func(...string), wide bool) {
	head := []string{"VOLUME", "CLAIM", "HOST", "TRUTH", "DIRTY", "REDUNDANT", "HEALTHY"}
	if wide {
		head = append(head, "GROUP", "SIZE", "CACHE", "REPLICAS", "OUTDATED", "EPOCH", "ENGINE", "IMAGE", "AGE")
	}
	if wide || v.filter.Problems {
		head = append(head, "PROBLEM")
	}
	rows := v.Volumes
	left, most := "", len(v.Volumes)
	switch {
	case !v.short || len(v.Volumes) <= maxVolumes:
	case v.sorted:
		most = maxVolumes
	default:
		rows = v.gravest()
		left, most = fmt.Sprintf("%d volumes without a problem are left out", len(v.Volumes)-len(rows)), maxVolumes
	}
	cells := make([][]string, 0, min(most, len(rows)))
	for i := range rows[:min(most, len(rows))] {
		cells = append(cells, v.volumeRow(&rows[i], wide))
	}
	v.limited(row, head, cells, len(rows)-len(cells), left)
}

// gravest returns the volumes with a problem, those with the most serious first.
func (v *view) gravest() []v1alpha1.CacheVolume {
	well := func(of v1alpha1.CacheVolume) bool { return !v.faults.Wrong(trouble.Volume, of.Name) }
	rows := slices.DeleteFunc(slices.Clone(v.Volumes), well)
	slices.SortStableFunc(rows, func(a, b v1alpha1.CacheVolume) int {
		return cmp.Compare(v.faults.Of(trouble.Volume, a.Name).Gravity, v.faults.Of(trouble.Volume, b.Name).Gravity)
	})
	return rows
}

func (v *view) volumeRow(of *v1alpha1.CacheVolume, wide bool) []string {
	is := &of.Status
	cells := []string{
		of.Name, v.Uses.ClaimOf(of), cmp.Or(is.AttachedNode, "-"), cmp.Or(string(is.Authority), string(v1alpha1.AuthorityCeph)),
		v1alpha1.HumanBytes(is.DirtyBytes), redundant(of, redundancy.Of(of, v.Group(of), redundancy.Evidence{}), v.now),
		conditionOf(of, v1alpha1.ConditionHealthy),
	}
	if wide {
		cells = append(cells, of.Spec.Group, v1alpha1.HumanBytes(of.Spec.SizeBytes), of.Spec.CacheText(),
			strings.Join(of.Spec.Replicas, ","), cmp.Or(strings.Join(is.Outdated, ","), "-"), fmt.Sprint(is.Epoch),
			string(of.Spec.Engine()), of.Spec.Pool+"/"+of.Spec.Image, age(of.CreationTimestamp, v.now))
	}
	if wide || v.filter.Problems {
		cells = append(cells, cmp.Or(strings.Join(v.faults.Of(trouble.Volume, of.Name).Reasons, ","), "-"))
	}
	return cells
}

func age(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// redundant is the condition and, if acknowledged writes are on one host only, why and for how long.
func redundant(v *v1alpha1.CacheVolume, f redundancy.Finding, now time.Time) string {
	switch {
	case f.Whole() || f.InCeph:
		return conditionOf(v, v1alpha1.ConditionRedundant)
	case f.Since.IsZero():
		return string(metav1.ConditionFalse) + " (" + f.Reason + ")"
	default:
		return fmt.Sprintf("%s (%s, %s)", metav1.ConditionFalse, f.Reason, now.Sub(f.Since).Truncate(time.Second))
	}
}

func conditionOf(v *v1alpha1.CacheVolume, kind string) string {
	if c := meta.FindStatusCondition(v.Status.Conditions, kind); c != nil && v.Status.AttachedNode != "" {
		return string(c.Status)
	}
	return "-"
}

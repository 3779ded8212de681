package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// hostTotals sums up the hosts that are chosen, and the versions of the driver.
func (v *View) hostTotals(row func(...string)) {
	var hosts, ready int
	var capacity, allocated int64
	versions := map[string][]string{}
	for i := range v.Groups {
		for _, node := range v.Groups[i].Spec.Nodes {
			if !v.hostShown(node) {
				continue
			}
			hosts++
			m, ok := Member(&v.Groups[i], node)
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
	if line := certificateLine(v.AllEnds(), v.Now); line != "" {
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

// Member returns what a group has on record of a host; false if it has nothing.
func Member(g *v1alpha1.NodeGroup, node string) (v1alpha1.NodeGroupMember, bool) {
	at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == node })
	if at < 0 {
		return v1alpha1.NodeGroupMember{}, false
	}
	return g.Status.Members[at], true
}

func (v *View) hosts(row func(...string), wide bool) {
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
			m, known := Member(g, name)
			if known {
				cells = []string{
					g.Name, name, MemberState(g, m), v1alpha1.HumanBytes(m.CacheCapacityBytes), Filled(m),
					v1alpha1.HumanBytes(m.DirtyBytes), fmt.Sprint(m.Volumes), fmt.Sprint(m.Primaries), LastSeen(m, v.Now),
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
func (v *View) hostCount() int {
	n := 0
	for i := range v.Groups {
		n += len(v.Groups[i].Spec.Nodes)
	}
	return n
}

// MemberState is the word for how a host is.
func MemberState(g *v1alpha1.NodeGroup, m v1alpha1.NodeGroupMember) string {
	switch {
	case g.Spec.Cordoned, slices.Contains(g.Spec.CordonedNodes, m.Name):
		return "Cordoned"
	case m.Ready:
		return "Ready"
	default:
		return "NotReady"
	}
}

// Filled is how much of the room for caches is given to volumes.
func Filled(m v1alpha1.NodeGroupMember) string {
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

// LastSeen says when a host has answered.
func LastSeen(m v1alpha1.NodeGroupMember, now time.Time) string {
	if m.Ready && m.LastSeen != nil && now.Sub(m.LastSeen.Time) < seenPeriod {
		return "now"
	}
	return console.Ago(m.LastSeen, now)
}

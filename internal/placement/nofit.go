package placement

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/escache/escache-csi/internal/shortlist"
)

// ErrNoFit means that no allowed group has two ready members with room.
var ErrNoFit = errors.New("no fit")

// maxShortfalls limits the error message: of hundreds of groups it names those that nearly fit.
const maxShortfalls = 5

// NoFitError says what each group lacks. It is ErrNoFit.
type NoFitError struct {
	Request Request
	// Shortfalls are the allowed groups that nearly fit, at most five.
	Shortfalls []Shortfall
	// Omitted is the number of allowed groups that are not in Shortfalls.
	Omitted int
}

// Shortfall says why one group does not fit.
type Shortfall struct {
	Group  string
	Reason string
	ready  int
	room   int64
}

// Is makes errors.Is(err, ErrNoFit) true.
func (e *NoFitError) Is(target error) bool { return target == ErrNoFit }

func (e *NoFitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "no group has two ready nodes with %s of cache free", formatBytes(e.Request.CacheBytes))
	if e.Request.Engine != "" {
		fmt.Fprintf(&b, " and the cache engine %s", e.Request.Engine)
	}
	if e.Request.Primary != "" {
		fmt.Fprintf(&b, ", one of them %s, which the scheduler chose", e.Request.Primary)
	}
	for i, s := range e.Shortfalls {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		fmt.Fprintf(&b, "%s: %s", s.Group, s.Reason)
	}
	if e.Omitted > 0 {
		fmt.Fprintf(&b, "; and %d more", e.Omitted)
	}
	return b.String()
}

func (s *State) explain(r Request) *NoFitError {
	e := &NoFitError{Request: r}
	if r.CacheBytes <= 0 {
		e.Shortfalls = []Shortfall{{Group: "request", Reason: "the cache size must be above zero"}}
		return e
	}
	for _, name := range s.candidates(r) {
		e.Shortfalls = append(e.Shortfalls, s.shortfall(name, r))
	}
	if len(e.Shortfalls) == 0 {
		e.Shortfalls = []Shortfall{{Group: "cluster", Reason: "there is no NodeGroup"}}
	}
	slices.SortFunc(e.Shortfalls, func(a, b Shortfall) int {
		return cmp.Or(cmp.Compare(b.ready, a.ready), cmp.Compare(b.room, a.room), cmp.Compare(a.Group, b.Group))
	})
	if more := len(e.Shortfalls) - maxShortfalls; more > 0 {
		e.Shortfalls, e.Omitted = slices.Clip(e.Shortfalls[:maxShortfalls]), more
	}
	return e
}

// candidates returns the groups to explain: if the request names a primary, only that node's group.
func (s *State) candidates(r Request) []string {
	if r.Primary != "" {
		if n := s.nodes[r.Primary]; n != nil && n.group != nil {
			return []string{n.group.name}
		}
		return []string{""}
	}
	if len(r.Groups) > 0 {
		return slices.Compact(slices.Sorted(slices.Values(r.Groups)))
	}
	var names []string
	for name, g := range s.groups {
		if g.known {
			names = append(names, name)
		}
	}
	return names
}

func (s *State) shortfall(name string, r Request) Shortfall {
	g := s.groups[name]
	switch {
	case name == "":
		return Shortfall{Group: r.Primary, Reason: "the node is in no NodeGroup"}
	case g == nil || !g.known:
		return Shortfall{Group: name, Reason: "there is no such NodeGroup"}
	case r.Primary != "" && len(r.Groups) > 0 && !slices.Contains(r.Groups, name):
		return Shortfall{Group: name, Reason: "not among the allowed groups " + shortlist.Of(r.Groups)}
	case g.cordoned && !r.Stays:
		return Shortfall{Group: name, Reason: "cordoned", room: noRoom}
	}
	out := Shortfall{Group: name, room: noRoom}
	var parts []string
	for _, n := range g.members {
		state, room := n.state(r), n.room()
		if room > noRoom && n.runs(r.Engine) {
			out.ready++
			out.room += room
		}
		if n.Name != r.Primary && !r.takesPartner(n.Name) {
			state = "may not have it"
		}
		parts = append(parts, n.Name+" "+state)
	}
	out.Reason = shortlist.Of(parts)
	if len(parts) == 0 {
		out.Reason = "has no nodes"
	}
	return out
}

// state has no figures that change by themselves: Kubernetes makes an Event of each different text.
func (n *node) state(r Request) string {
	switch {
	case !n.Ready:
		return "not ready"
	case !n.runs(r.Engine):
		return "without the cache engine " + r.Engine
	case n.MaxVolumes > 0 && n.replicas >= n.MaxVolumes:
		return fmt.Sprintf("at its limit of %d replicas", n.MaxVolumes)
	case n.space() < r.CacheBytes:
		return "too full"
	case !n.fits(r):
		return "without memory for more connected caches"
	default:
		return "has room"
	}
}

// formatBytes rounds down, so that too little free space never looks like enough.
func formatBytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 40, "TiB"}, {1 << 30, "GiB"}, {1 << 20, "MiB"}} {
		if n >= u.size {
			if n%u.size == 0 {
				return fmt.Sprintf("%d %s", n/u.size, u.name)
			}
			return fmt.Sprintf("%.2f %s", math.Floor(float64(n)/float64(u.size)*100)/100, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

package placement

import (
	"cmp"
	"slices"
	"strings"

	"github.com/escache/escache-csi/internal/shortlist"
)

// Rebalance proposes the fewest moves of volumes between groups after which no group is fuller than
// another by more than one volume. As Decide does, it measures how full a group is by the share of its
// cache that is allocated; the volume has the average size, and is in the smaller of the two groups.
// Groups that are cordoned neither give nor take. It is a good approximation: the volumes are
// considered the largest first, and each moves once at most.
func (s *State) Rebalance(ties Ties) Proposal {
	p := s.planner(ties)
	b := &balancer{planner: p, groups: p.open(), size: p.averageSize()}
	b.mean = b.meanShare()
	b.giving = map[*score][]Volume{}
	for _, g := range b.groups {
		b.giving[g] = slices.DeleteFunc(p.of(g.group.name), func(v Volume) bool { return ties.Fixed[v.Name] != "" })
	}
	for b.step() {
	}
	b.explain()
	return p.proposal()
}

// balancer looks for the next move.
type balancer struct {
	*planner

	groups []*score
	size   int64   // of one volume, on average
	mean   float64 // share of all groups together
	giving map[*score][]Volume
}

// open are the groups that take part.
func (s *State) open() []*score {
	var out []*score
	for i := range s.scores {
		sc := &s.scores[i]
		if sc.group != nil && sc.group.known && !sc.group.cordoned && sc.capacity > 0 {
			out = append(out, sc)
		}
	}
	return out
}

// averageSize is the average size of the volumes in groups that take part.
func (s *State) averageSize() int64 {
	var sum, volumes int64
	for _, v := range s.volumes {
		if g := s.groups[v.Group]; g != nil && g.known && !g.cordoned {
			sum, volumes = sum+v.CacheBytes, volumes+1
		}
	}
	if volumes == 0 {
		return 0
	}
	return sum / volumes
}

func (b *balancer) meanShare() float64 {
	var allocated, capacity int64
	for _, g := range b.groups {
		allocated, capacity = allocated+g.allocated, capacity+g.capacity
	}
	return share(allocated, capacity)
}

// fuller reports whether a group is fuller than another by more than one volume of this size.
func (sc *score) fuller(than *score, size int64) bool {
	const exact = 1 + 1e-9 // one volume more of equal ones is not more than one volume
	gap := share(sc.allocated, sc.capacity) - share(than.allocated, than.capacity)
	return gap > exact*share(2*size, min(sc.capacity, than.capacity))
}

// even reports whether no group is fuller than another by more than one volume.
func (s *State) even() bool {
	groups, size := s.open(), s.averageSize()
	for _, g := range groups {
		if slices.ContainsFunc(groups, func(than *score) bool { return g.fuller(than, size) }) {
			return false
		}
	}
	return true
}

// step makes the next move. It returns false if there is none.
func (b *balancer) step() bool {
	slices.SortFunc(b.groups, func(x, y *score) int {
		fullest := cmp.Compare(share(y.allocated, y.capacity), share(x.allocated, x.capacity))
		return cmp.Or(fullest, strings.Compare(x.group.name, y.group.name))
	})
	for _, from := range b.groups {
		for _, to := range slices.Backward(b.groups) {
			if from.fuller(to, b.size) && b.give(from, to) {
				return true
			}
		}
	}
	return false
}

// give moves one volume between two groups, the one that brings both closest to the mean. It returns
// false if there is none.
func (b *balancer) give(from, to *score) bool {
	all := b.giving[from]
	able := func(v Volume) bool {
		return v.CacheBytes <= to.room && from.fuller(to, v.CacheBytes) && b.mayGo(v, to)
	}
	for _, limit := range b.limits(from, to) {
		first, _ := slices.BinarySearchFunc(all, limit, func(v Volume, limit int64) int { return cmp.Compare(limit, v.CacheBytes) })
		for i := first; i < len(all); i++ {
			if able(all[i]) {
				return b.take(from, to, b.likest(all, i, able))
			}
		}
	}
	for i, v := range slices.Backward(all) { // all are larger: the smallest that helps
		if able(v) {
			return b.take(from, to, i)
		}
	}
	return false
}

// limits are the largest sizes that bring neither group beyond the mean and, if there is no such volume,
// that do not make the emptier group the fuller one.
func (b *balancer) limits(from, to *score) [2]int64 {
	excess := float64(from.allocated) - b.mean*float64(from.capacity)
	lack := b.mean*float64(to.capacity) - float64(to.allocated)
	x, y := float64(from.capacity), float64(to.capacity)
	level := (float64(from.allocated)*y - float64(to.allocated)*x) / (x + y)
	return [2]int64{int64(min(excess, lack) / 2), int64(level / 2)}
}

// mayGo reports whether a volume may be in the group.
func (b *balancer) mayGo(v Volume, to *score) bool {
	listed, is := b.ties.Groups[v.Name]
	return !is || slices.Contains(listed, to.group.name)
}

// likest returns, of the volumes from i on that have the same size, the one whose hosts are the fullest.
// So the hosts of the group that gives stay even.
func (b *balancer) likest(all []Volume, i int, able func(Volume) bool) int {
	filled := func(v Volume) (float64, int) {
		primary, partner := b.nodes[v.Primary], b.nodes[v.Partner]
		return share(primary.allocated, primary.usable()) + share(partner.allocated, partner.usable()), primary.primaries
	}
	best := i
	most, primaries := filled(all[i])
	for j := i + 1; j < len(all) && all[j].CacheBytes == all[i].CacheBytes; j++ {
		if f, n := filled(all[j]); able(all[j]) && (f > most || f == most && n > primaries) {
			best, most, primaries = j, f, n
		}
	}
	return best
}

func (b *balancer) take(from, to *score, i int) bool {
	v := b.giving[from][i]
	b.giving[from] = slices.Delete(b.giving[from], i, i+1)
	return b.move(v, []string{to.group.name}) == nil
}

// explain says why the groups that stay fuller than others do not give more.
func (b *balancer) explain() {
	for _, from := range b.groups {
		emptier := slices.DeleteFunc(slices.Clone(b.groups), func(to *score) bool { return !from.fuller(to, b.size) })
		if len(emptier) == 0 {
			continue
		}
		for _, v := range b.of(from.group.name) {
			if reason := b.obstacle(v, from, emptier); reason != "" {
				b.stay(v, reason)
			}
		}
	}
}

// obstacle says why a volume goes to none of the emptier groups. It is empty if it would not help.
func (b *balancer) obstacle(v Volume, from *score, emptier []*score) string {
	helped := slices.DeleteFunc(slices.Clone(emptier), func(to *score) bool { return !from.fuller(to, v.CacheBytes) })
	if len(helped) == 0 {
		return ""
	}
	if why := b.ties.Fixed[v.Name]; why != "" {
		return why
	}
	var names []string
	for _, to := range helped {
		if b.mayGo(v, to) {
			names = append(names, to.group.name)
		}
	}
	if len(names) == 0 {
		return "it may be in these groups only: " + shortlist.Of(b.ties.Groups[v.Name])
	}
	if _, err := b.Decide(Request{Volume: v.Name, CacheBytes: v.CacheBytes, Engine: v.Engine, Groups: names}); err != nil {
		return err.Error()
	}
	return ""
}

package placement

import (
	"hash/fnv"
	"slices"
)

// Decide returns where a volume should go. It changes nothing: SetVolume stores the decision. A
// volume that has a place already is decided again as if it had none. The error is a *NoFitError,
// which is ErrNoFit.
//
// Of all groups with room it takes the one with the lowest allocated share after placing, then the
// fewest volumes, then the highest rendezvous hash with the volume's name.
// choosePair chooses the hosts within the group.
func (s *State) Decide(r Request) (Placement, error) {
	if old, ok := s.volumes[r.Volume]; ok {
		s.RemoveVolume(r.Volume)
		defer s.SetVolume(old)
	}
	seed := hash(r.Volume)
	g := s.chooseGroup(r, seed)
	if g == nil {
		return Placement{}, s.explain(r)
	}
	primary, partner := choosePair(g.members, r, seed)
	if primary == nil {
		return Placement{}, s.explain(r)
	}
	return Placement{Group: g.name, Primary: primary.Name, Partner: partner.Name}, nil
}

func (s *State) chooseGroup(r Request, seed uint64) *group {
	if r.CacheBytes <= 0 {
		return nil
	}
	if r.Primary != "" {
		return s.groupOfPrimary(r)
	}
	var best *score
	if len(r.Groups) == 0 {
		for i := range s.scores {
			if sc := &s.scores[i]; sc.takes(r) && (best == nil || sc.better(best, r.CacheBytes, seed)) {
				best = sc
			}
		}
	}
	for _, name := range r.Groups {
		g := s.groups[name]
		if g == nil {
			continue
		}
		if sc := &s.scores[g.slot]; sc.takes(r) && (best == nil || sc.better(best, r.CacheBytes, seed)) {
			best = sc
		}
	}
	if best == nil {
		return nil
	}
	return best.group
}

// takes reports whether two members of the group have room for the request. Few requests name an engine,
// and only those look at more than the score.
func (a *score) takes(r Request) bool {
	return a.room >= r.CacheBytes && (r.Engine == "" || a.group.room(r.Engine) >= r.CacheBytes)
}

// groupOfPrimary returns the group of the node the scheduler chose, if that node and one more
// member have room.
func (s *State) groupOfPrimary(r Request) *group {
	n := s.nodes[r.Primary]
	if n == nil || n.group == nil || !n.fits(r) {
		return nil
	}
	// The score knows that no volume may come. Whether there is room beside the node, choosePair finds out.
	if !r.Stays && s.scores[n.group.slot].room < r.CacheBytes {
		return nil
	}
	if len(r.Groups) > 0 && !slices.Contains(r.Groups, n.group.name) {
		return nil
	}
	return n.group
}

// better is a total order, so the order in which groups are looked at does not matter.
func (a *score) better(b *score, size int64, seed uint64) bool {
	if x, y := share(a.allocated+2*size, a.capacity), share(b.allocated+2*size, b.capacity); x != y {
		return x < y
	}
	if a.volumes != b.volumes {
		return a.volumes < b.volumes
	}
	if x, y := mix(a.hash^seed), mix(b.hash^seed); x != y {
		return x > y
	}
	return a.group.name < b.group.name
}

// pair is a candidate with its costs, the most important first.
type pair struct {
	primary, partner *node
	short            int     // how many of both have no memory for it
	share            float64 // sum of both nodes' allocated shares after placing
	primaries        int     // of the primary
	debt             int     // how much more the partner owes replicas without being primary than the primary does
}

// choosePair looks at all ordered pairs of members with room. Equal volumes must stay within one
// both in replicas and in primaries, in a group of any size. Choosing the primary first by fewest
// primaries and then the partner by share does not do that. With replicas 1,1,0 and primaries 1,0,0
// it may take the last as primary and the second as partner. Then the second is due as primary,
// but has too many replicas. So the two lowest shares are the pair. Of equal pairs and of the two in
// it, the primary is the one with the fewest primaries. What is still equal is decided so that nodes
// which were partner more often than primary become primary, and the others partner. The tests walk
// through every state this can reach. A volume that stays in its group prefers hosts with memory for it.
func choosePair(members []*node, r Request, seed uint64) (primary, partner *node) {
	var best pair
	for _, a := range members {
		if !a.fits(r) || (r.Primary != "" && a.Name != r.Primary) {
			continue
		}
		for _, b := range members {
			if a == b || !b.fits(r) || !r.takesPartner(b.Name) {
				continue
			}
			p := newPair(a, b, r.CacheBytes)
			if best.primary == nil || p.cheaper(best) || (!best.cheaper(p) && p.before(best, seed)) {
				best = p
			}
		}
	}
	return best.primary, best.partner
}

// takesPartner reports whether the request allows the node as the partner.
func (r Request) takesPartner(node string) bool {
	return (r.Partner == "" || r.Partner == node) && !slices.Contains(r.Without, node)
}

// Partners returns the hosts that can be the partner of the request's primary, in the order in which
// Decide takes them: those with memory for it first, then the lowest allocated share. The error is a
// *NoFitError, which is ErrNoFit.
func (s *State) Partners(r Request) ([]string, error) {
	var partners []string
	r.Without = slices.Clone(r.Without)
	for {
		p, err := s.Decide(r)
		switch {
		case err != nil && len(partners) > 0:
			return partners, nil // there is no further one
		case err != nil:
			return nil, err
		}
		partners, r.Without = append(partners, p.Partner), append(r.Without, p.Partner)
	}
}

func newPair(primary, partner *node, size int64) pair {
	owed := func(n *node) int { return n.replicas - 2*n.primaries }
	short := 0
	for _, n := range [2]*node{primary, partner} {
		if n.memory() < size {
			short++
		}
	}
	return pair{
		primary: primary, partner: partner, short: short,
		share:     share(primary.allocated+size, primary.usable()) + share(partner.allocated+size, partner.usable()),
		primaries: primary.primaries,
		debt:      owed(partner) - owed(primary),
	}
}

func (p pair) cheaper(q pair) bool {
	if p.short != q.short {
		return p.short < q.short
	}
	if p.share != q.share {
		return p.share < q.share
	}
	if p.primaries != q.primaries {
		return p.primaries < q.primaries
	}
	return p.debt < q.debt
}

// before orders pairs of equal cost by rendezvous hash: a total order, as names differ within a
// group.
func (p pair) before(q pair, seed uint64) bool {
	if p.primary != q.primary {
		return p.primary.ahead(q.primary, seed)
	}
	return p.partner.ahead(q.partner, seed)
}

func (n *node) ahead(m *node, seed uint64) bool {
	if x, y := mix(n.hash^seed), mix(m.hash^seed); x != y {
		return x > y
	}
	return n.Name < m.Name
}

// share is exact enough: equal allocations on equal capacities give equal shares. Without capacity
// it is +Inf.
func share(allocated, capacity int64) float64 { return float64(allocated) / float64(capacity) }

// hash is the same in every process and every version, unlike hash/maphash.
func hash(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails, says hash.Hash
	return h.Sum64()
}

// mix is the finalizer of splitmix64: it spreads what the two xored hashes have in common over all
// bits.
func mix(x uint64) uint64 {
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9
	x = (x ^ (x >> 27)) * 0x94d049bb133111eb
	return x ^ (x >> 31)
}

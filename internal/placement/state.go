package placement

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrNodeTaken is returned for a group that names a node of another group.
var ErrNodeTaken = errors.New("node is already in another group")

// State holds groups and placed volumes, and keeps all sums that a decision needs up to date.
// A call in flight is a volume that was added and may be removed again. State must not be used by
// two goroutines at once; Ledger adds the lock.
type State struct {
	volumes map[string]Volume
	nodes   map[string]*node
	groups  map[string]*group
	// scores has one entry for each group, side by side in memory: the choice of a group reads
	// nothing else.
	scores []score
	free   []int // slots of scores that no group uses
}

// node is kept while a volume names it, even if no group does: volumes may arrive before their
// group.
type node struct {
	Member

	hash      uint64
	group     *group
	allocated int64
	replicas  int
	primaries int
}

type group struct {
	name     string
	known    bool // false: only volumes name it so far
	cordoned bool
	slot     int
	members  []*node
}

// score holds the numbers by which groups are compared. Members that are not ready count in
// allocated and capacity.
type score struct {
	allocated int64
	capacity  int64
	room      int64 // the largest replica that two members can still take; -1: none at all
	volumes   int
	hash      uint64
	group     *group // nil: the slot is unused
}

// New returns a State without groups and volumes.
func New() *State {
	return &State{volumes: map[string]Volume{}, nodes: map[string]*node{}, groups: map[string]*group{}}
}

// SetGroup adds or replaces a group. Its volumes stay.
// It does not take a node from another group: it enters the rest and returns ErrNodeTaken. What the group does not name any
// more is free even then, so that groups can exchange nodes.
func (s *State) SetGroup(in Group) error {
	g := s.group(in.Name)
	g.known, g.cordoned = true, in.Cordoned
	s.unlinkMembers(g)
	var refused []error
	for _, m := range in.Members {
		n := s.node(m.Name)
		switch n.group {
		case nil:
			n.Member, n.group = m, g
			g.members = append(g.members, n)
		case g:
			refused = append(refused, fmt.Errorf("group %s names node %s twice: %w", in.Name, m.Name, ErrNodeTaken))
		default:
			refused = append(refused, fmt.Errorf("group %s claims node %s of group %s: %w", in.Name, m.Name, n.group.name, ErrNodeTaken))
		}
	}
	s.rescore(g)
	return errors.Join(refused...)
}

// RemoveGroup removes a group. Its volumes are kept, and count again when the group or its nodes
// return.
func (s *State) RemoveGroup(name string) {
	g := s.groups[name]
	if g == nil {
		return
	}
	g.known = false
	s.unlinkMembers(g)
	s.rescore(g)
	s.dropUnused(g)
}

// SetVolume adds or replaces a volume.
func (s *State) SetVolume(v Volume) {
	s.RemoveVolume(v.Name)
	s.volumes[v.Name] = v
	s.count(v, 1)
}

// RemoveVolume removes a volume, if it is there.
func (s *State) RemoveVolume(name string) {
	v, ok := s.volumes[name]
	if !ok {
		return
	}
	delete(s.volumes, name)
	s.count(v, -1)
	s.dropUnused(s.groups[v.Group])
}

// Volume returns a volume, and whether it is there.
func (s *State) Volume(name string) (Volume, bool) {
	v, ok := s.volumes[name]
	return v, ok
}

func (s *State) count(v Volume, sign int) {
	g := s.group(v.Group)
	s.scores[g.slot].volumes += sign
	primary, partner := s.node(v.Primary), s.node(v.Partner)
	primary.primaries += sign
	for _, n := range [2]*node{primary, partner} {
		n.allocated += int64(sign) * v.CacheBytes
		n.replicas += sign
		if n.group != nil {
			s.rescore(n.group)
		}
		if n.group == nil && n.replicas == 0 {
			delete(s.nodes, n.Name)
		}
	}
}

func (s *State) unlinkMembers(g *group) {
	for _, n := range g.members {
		n.group = nil
		if n.replicas == 0 {
			delete(s.nodes, n.Name)
		}
	}
	g.members = nil
}

func (s *State) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{Member: Member{Name: name}, hash: hash(name)}
		s.nodes[name] = n
	}
	return n
}

func (s *State) group(name string) *group {
	g := s.groups[name]
	if g != nil {
		return g
	}
	g = &group{name: name}
	if last := len(s.free) - 1; last >= 0 {
		g.slot, s.free = s.free[last], s.free[:last]
	} else {
		g.slot = len(s.scores)
		s.scores = append(s.scores, score{})
	}
	s.scores[g.slot] = score{hash: hash(name), room: noRoom, group: g}
	s.groups[name] = g
	return g
}

func (s *State) dropUnused(g *group) {
	if g == nil || g.known || s.scores[g.slot].volumes > 0 {
		return
	}
	delete(s.groups, g.name)
	s.scores[g.slot] = score{room: noRoom}
	s.free = append(s.free, g.slot)
}

// rescore computes the sums of a group again. Groups have few members, so this is simpler than deltas,
// and as fast.
func (s *State) rescore(g *group) {
	sc := &s.scores[g.slot]
	sc.allocated, sc.capacity = 0, 0
	for _, n := range g.members {
		sc.allocated += n.allocated
		sc.capacity += n.usable()
	}
	sc.room = g.room("")
}

// room is the largest replica that two members with the engine can still take, or noRoom.
func (g *group) room(engine string) int64 {
	if g.cordoned || !g.known {
		return noRoom
	}
	largest, second := int64(noRoom), int64(noRoom)
	for _, n := range g.members {
		if !n.runs(engine) {
			continue
		}
		switch room := n.room(); {
		case room > largest:
			largest, second = room, largest
		case room > second:
			second = room
		}
	}
	return second
}

const noRoom = -1

// usable is the capacity that is left for volumes of the State.
func (n *node) usable() int64 { return max(0, n.CapacityBytes-n.OtherBytes) }

// room is the largest replica that the node can still take, or noRoom.
func (n *node) room() int64 { return min(n.space(), n.memory()) }

// memory is the largest cache for which the node has memory if all others are connected, or noRoom.
func (n *node) memory() int64 {
	if n.ConnectableBytes == nil {
		return math.MaxInt64
	}
	return max(noRoom, *n.ConnectableBytes-n.allocated)
}

// runs reports whether the node has a cache engine.
func (n *node) runs(engine string) bool { return engine == "" || slices.Contains(n.Engines, engine) }

// fits reports whether the node can take the request's replica.
func (n *node) fits(r Request) bool {
	if !n.runs(r.Engine) {
		return false
	}
	if r.Stays {
		return n.space() >= r.CacheBytes
	}
	return n.room() >= r.CacheBytes
}

// space is the largest replica for which the node has space on its disks, or noRoom.
func (n *node) space() int64 {
	if !n.Ready || (n.MaxVolumes > 0 && n.replicas >= n.MaxVolumes) {
		return noRoom
	}
	return max(noRoom, n.usable()-n.allocated)
}

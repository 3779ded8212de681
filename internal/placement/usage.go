package placement

import (
	"cmp"
	"slices"
)

// Usage is the capacity and use of a group, as decisions count them: calls in flight included.
type Usage struct {
	Group          string
	Cordoned       bool
	Volumes        int
	CapacityBytes  int64 // of all members
	AllocatedBytes int64 // replicas on all members, so two for each volume
	// LargestBytes is the largest cache that still fits, 0 if none does.
	LargestBytes int64
	// LargestOf is LargestBytes for a volume of an engine that not every host has.
	LargestOf map[string]int64
	// RoomBytes is the sum of the caches that still fit, in small volumes. Each cache counts once.
	// 0 if none fits.
	RoomBytes int64
	Members   []MemberUsage
}

// MemberUsage is the capacity and use of one member.
type MemberUsage struct {
	Name           string
	Ready          bool
	Cordoned       bool
	CapacityBytes  int64
	AllocatedBytes int64
	Replicas       int
	Primaries      int
}

// Usage returns all groups, sorted by name.
func (s *State) Usage() []Usage {
	var out []Usage
	for _, g := range s.groups {
		if g.known {
			out = append(out, s.usage(g))
		}
	}
	slices.SortFunc(out, func(a, b Usage) int { return cmp.Compare(a.Group, b.Group) })
	return out
}

func (s *State) usage(g *group) Usage {
	sc := s.scores[g.slot]
	u := Usage{
		Group: g.name, Cordoned: g.cordoned, Volumes: sc.volumes,
		CapacityBytes: sc.capacity, AllocatedBytes: sc.allocated, LargestBytes: max(0, sc.room),
	}
	var sum, largest int64
	for _, n := range g.members {
		for _, engine := range n.Engines {
			if u.LargestOf == nil {
				u.LargestOf = map[string]int64{}
			}
			u.LargestOf[engine] = max(0, g.room(engine))
		}
		u.Members = append(u.Members, MemberUsage{
			Name: n.Name, Ready: n.Ready, Cordoned: n.Cordoned, CapacityBytes: n.usable(),
			AllocatedBytes: n.allocated, Replicas: n.replicas, Primaries: n.primaries,
		})
		room := max(0, n.room())
		sum, largest = sum+room, max(largest, room)
	}
	if !g.cordoned {
		// Each volume needs two different members: room of the largest member beyond that of all
		// others together cannot be used.
		u.RoomBytes = min(sum/2, sum-largest)
	}
	return u
}

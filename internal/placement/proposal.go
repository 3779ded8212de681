package placement

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoGroup means that no group has that name.
var ErrNoGroup = errors.New("there is no such NodeGroup")

// Move proposes that a volume goes to another group.
type Move struct {
	Volume     string
	CacheBytes int64
	From       string
	To         Placement
}

// Staying is a volume that does not move, although that is wanted.
type Staying struct {
	Volume string
	Group  string
	Reason string
}

// Proposal is what Rebalance and Empty propose.
type Proposal struct {
	Moves []Move
	// Staying are the volumes that keep what is wanted from being reached, by group and name.
	Staying []Staying
	// Even is true if no group is fuller than another by more than one volume after the moves.
	Even bool
	// After is the use of all groups after the moves.
	After []Usage
}

// Ties are what binds volumes to their groups.
type Ties struct {
	// Fixed says why a volume cannot move, by its name.
	Fixed map[string]string
	// Groups are the only groups that a volume may be in, by its name. A volume that is not here may be
	// in any.
	Groups map[string][]string
}

// planner tries moves on a State, and takes them back in the end.
type planner struct {
	*State

	ties  Ties
	moves []Move
	old   []Volume
	stays []Staying
	moved map[string]bool
}

func (s *State) planner(ties Ties) *planner {
	return &planner{State: s, ties: ties, moved: map[string]bool{}}
}

// move places a volume in one of the groups, as Decide does.
func (p *planner) move(v Volume, groups []string) error {
	to, err := p.Decide(Request{Volume: v.Name, CacheBytes: v.CacheBytes, Engine: v.Engine, Groups: groups})
	if err != nil {
		return err
	}
	p.moves = append(p.moves, Move{Volume: v.Name, CacheBytes: v.CacheBytes, From: v.Group, To: to})
	p.old, p.moved[v.Name] = append(p.old, v), true
	p.SetVolume(Volume{
		Name: v.Name, Group: to.Group, Primary: to.Primary, Partner: to.Partner, CacheBytes: v.CacheBytes, Engine: v.Engine,
	})
	return nil
}

func (p *planner) stay(v Volume, reason string) {
	p.stays = append(p.stays, Staying{v.Name, v.Group, reason})
}

// proposal is what was found. It takes all moves back.
func (p *planner) proposal() Proposal {
	slices.SortFunc(p.stays, func(a, b Staying) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Volume, b.Volume))
	})
	out := Proposal{Moves: p.moves, Staying: p.stays, Even: p.even(), After: p.Usage()}
	for _, v := range p.old {
		p.SetVolume(v)
	}
	return out
}

// of returns the volumes of a group that have not moved, the largest first.
func (p *planner) of(group string) []Volume {
	var out []Volume
	for _, v := range p.volumes {
		if v.Group == group && !p.moved[v.Name] {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Volume) int {
		return cmp.Or(cmp.Compare(b.CacheBytes, a.CacheBytes), strings.Compare(a.Name, b.Name))
	})
	return out
}

// allowed returns the groups that a volume may go to, other than its own; nil means all others.
func (p *planner) allowed(v Volume) (groups []string, tied string) {
	listed, is := p.ties.Groups[v.Name]
	if !is {
		return nil, ""
	}
	groups = slices.DeleteFunc(slices.Clone(listed), func(g string) bool { return g == v.Group })
	if len(groups) == 0 {
		return nil, "it may be in group " + v.Group + " only"
	}
	return groups, ""
}

// Empty proposes where the volumes of a group would go if the group were taken away: each to the group
// where it would be placed as a new one. The error is ErrNoGroup.
func (s *State) Empty(group string, ties Ties) (Proposal, error) {
	g := s.groups[group]
	if g == nil || !g.known {
		return Proposal{}, fmt.Errorf("%s: %w", group, ErrNoGroup)
	}
	was := g.cordoned
	g.cordoned = true
	s.rescore(g)
	p := s.planner(ties)
	for _, v := range p.of(group) {
		groups, reason := p.allowed(v)
		reason = cmp.Or(ties.Fixed[v.Name], reason)
		if reason == "" {
			if err := p.move(v, groups); err != nil {
				reason = err.Error()
			}
		}
		if reason != "" {
			p.stay(v, reason)
		}
	}
	out := p.proposal()
	g.cordoned = was
	s.rescore(g)
	return out, nil
}

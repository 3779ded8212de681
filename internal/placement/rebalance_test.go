package placement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// fleet is a State with groups of 3 to 6 hosts and many volumes.
func fleet(t *testing.T, r *rand.Rand, groups, volumes int, size func() int64) *State {
	t.Helper()
	s := New()
	for i := range groups {
		mustSet(t, s, groupOf(i, 3+r.IntN(4), 1<<50))
	}
	for i := range volumes {
		place(t, s, Request{Volume: fmt.Sprintf("v%05d", i), CacheBytes: size()})
	}
	return s
}

// apply does what was proposed, and checks each move by itself.
func apply(t *testing.T, s *State, p Proposal) {
	t.Helper()
	seen := map[string]bool{}
	for _, m := range p.Moves {
		v, ok := s.Volume(m.Volume)
		g := s.groups[m.To.Group]
		if !ok || v.Group != m.From || v.CacheBytes != m.CacheBytes || m.From == m.To.Group || seen[m.Volume] || g.cordoned {
			t.Fatalf("move %+v of volume %+v (moved before: %v)", m, v, seen[m.Volume])
		}
		seen[m.Volume] = true
		for _, name := range []string{m.To.Primary, m.To.Partner} {
			n := s.nodes[name]
			if n == nil || n.group != g || m.To.Primary == m.To.Partner || n.room() < v.CacheBytes {
				t.Fatalf("move %+v: no room on %+v", m, n)
			}
		}
		s.SetVolume(Volume{Name: v.Name, Group: m.To.Group, Primary: m.To.Primary, Partner: m.To.Partner, CacheBytes: v.CacheBytes})
	}
}

// gap is by how many volumes of the average size, in the smaller of two groups, one is fuller than the
// other, at most.
func gap(s *State) float64 {
	var sum, count int64
	for _, v := range s.volumes {
		sum, count = sum+v.CacheBytes, count+1
	}
	average := float64(sum) / float64(count)
	worst := 0.0
	for _, x := range s.Usage() {
		for _, y := range s.Usage() {
			above := float64(x.AllocatedBytes)/float64(x.CapacityBytes) - float64(y.AllocatedBytes)/float64(y.CapacityBytes)
			worst = max(worst, above*float64(min(x.CapacityBytes, y.CapacityBytes))/(2*average))
		}
	}
	return worst
}

// fewest is a lower bound of the moves between groups of volumes of one size: over all levels that the
// fullest group may have in the end, the volumes that are above it, or missing below it.
func fewest(s *State) int {
	usage := s.Usage()
	total := 0
	for _, u := range usage {
		total += u.Volumes
	}
	best := math.MaxInt
	for _, of := range usage {
		for most := range total + 1 {
			lows, highs, above, below := 0, 0, 0, 0
			for _, u := range usage {
				size, fullest := int(u.CapacityBytes/gib), int(of.CapacityBytes/gib)
				high := most * size / fullest
				low := int(math.Ceil(float64(most*size)/float64(fullest) - float64(size)/float64(min(size, fullest)) - 1e-6))
				lows, highs = lows+low, highs+high
				above, below = above+max(0, u.Volumes-high), below+max(0, low-u.Volumes)
			}
			if lows <= total && total <= highs {
				best = min(best, max(above, below))
			}
		}
	}
	return best
}

// fewestBytes is a lower bound for volumes of any size: no group may be above the mean by more than one
// volume of the average size in the emptiest group, so that much has to leave, in the largest volumes.
func fewestBytes(s *State) int {
	var allocated, capacity, sum, count, smallest int64
	for _, u := range s.Usage() {
		allocated, capacity = allocated+u.AllocatedBytes, capacity+u.CapacityBytes
		if smallest == 0 || u.CapacityBytes < smallest {
			smallest = u.CapacityBytes
		}
	}
	for _, v := range s.volumes {
		sum, count = sum+v.CacheBytes, count+1
	}
	highest := float64(allocated)/float64(capacity) + 2*float64(sum/count)/float64(smallest)
	moves := 0
	for _, u := range s.Usage() {
		above := float64(u.AllocatedBytes) - highest*float64(u.CapacityBytes)
		var sizes []int64
		for _, v := range s.volumes {
			if v.Group == u.Group {
				sizes = append(sizes, v.CacheBytes)
			}
		}
		slices.SortFunc(sizes, func(a, b int64) int { return cmp.Compare(b, a) })
		for i := 0; above > 0; i++ {
			above -= 2 * float64(sizes[i])
			moves++
		}
	}
	return moves
}

// TestAGroupComesAndAnotherGoes is the life of 10,000 volumes in five groups of 3 to 6 hosts: a sixth
// group comes and takes its share, and then another is taken away.
func TestAGroupComesAndAnotherGoes(t *testing.T) {
	for name, tc := range map[string]struct {
		size  func(r *rand.Rand) int64
		bound func(*State) int // nil: none that is close is known
	}{
		"volumes of one size":     {func(*rand.Rand) int64 { return gib }, fewest},
		"volumes of many sizes":   {func(r *rand.Rand) int64 { return 1<<22 + r.Int64N(8*gib) }, fewestBytes},
		"a few very large caches": {func(r *rand.Rand) int64 { return int64(1+r.IntN(50)/49*63) * gib }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := *firstSeed; seed < *firstSeed+3; seed++ {
				r := rand.New(rand.NewPCG(seed, 1))
				s := fleet(t, r, 5, 10_000, func() int64 { return tc.size(r) })
				mustSet(t, s, groupOf(5, 3+r.IntN(4), 1<<50))
				p := s.Rebalance(Ties{})
				if tc.bound != nil {
					least := tc.bound(s)
					t.Logf("seed %d: the sixth group takes %d volumes, and no way has fewer than %d", seed, len(p.Moves), least)
					if least < 100 || 100*len(p.Moves) > 105*least {
						t.Errorf("seed %d: %d moves, at least %d are needed", seed, len(p.Moves), least)
					}
				}
				apply(t, s, p)
				if !p.Even || len(p.Staying) > 0 || gap(s) > 1+1e-6 {
					t.Errorf("seed %d: even %v, gap %.2f, staying %v", seed, p.Even, gap(s), p.Staying)
				}
				if again := s.Rebalance(Ties{}); len(again.Moves) > 0 {
					t.Errorf("seed %d: %d moves of what is even", seed, len(again.Moves))
				}
				leaves(t, s, groupName(r.IntN(6)), tc.bound != nil)
			}
		})
	}
}

// leaves takes a group away. If the volumes are not of too different sizes, the others are nearly even then.
func leaves(t *testing.T, s *State, group string, nearly bool) {
	t.Helper()
	there := s.scores[s.groups[group].slot].volumes
	p, err := s.Empty(group, Ties{})
	if err != nil {
		t.Fatal(err)
	}
	apply(t, s, p)
	if len(p.Moves) != there || len(p.Staying) > 0 || s.scores[s.groups[group].slot].volumes != 0 {
		t.Errorf("%d of %d volumes leave; %v stay", len(p.Moves), there, p.Staying)
	}
	s.RemoveGroup(group)
	rest := s.Rebalance(Ties{})
	t.Logf("group %s is taken away with %d moves, and %d more make the others even", group, there, len(rest.Moves))
	if nearly && 100*len(rest.Moves) > 5*there {
		t.Errorf("%d moves were needed to empty the group, and %d more to make the others even", there, len(rest.Moves))
	}
	apply(t, s, rest)
	if gap(s) > 1+1e-6 {
		t.Errorf("gap %.2f", gap(s))
	}
}

// TestProposalsChangeNothing: the same question has the same answer, whatever was asked before.
func TestProposalsChangeNothing(t *testing.T) {
	eachSeed(t, func(t *testing.T, r *rand.Rand) {
		s := fleet(t, r, 1+r.IntN(4), 40, func() int64 { return 1 + r.Int64N(8*gib) })
		mustSet(t, s, groupOf(9, 3, 1<<50))
		volumes, usage := maps.Clone(s.volumes), s.Usage()
		first := s.Rebalance(Ties{})
		if _, err := s.Empty("g000", Ties{}); err != nil {
			t.Fatal(err)
		}
		if again := s.Rebalance(Ties{}); !slices.Equal(again.Moves, first.Moves) {
			t.Errorf("first %v, then %v", first.Moves, again.Moves)
		}
		if !maps.Equal(s.volumes, volumes) || fmt.Sprint(s.Usage()) != fmt.Sprint(usage) {
			t.Error("the state has changed")
		}
		if len(first.Moves) == 0 {
			t.Error("nothing moves to an empty group")
		}
	})
}

// TestRandomFleetsBecomeAsEvenAsTheyCan: full hosts, cordons, hosts that are down and volumes that are
// tied. What is proposed can be done, and the groups are even in the end, or it says what stays and why.
func TestRandomFleetsBecomeAsEvenAsTheyCan(t *testing.T) {
	eachSeed(t, func(t *testing.T, r *rand.Rand) {
		s := New()
		groups := 2 + r.IntN(4)
		for i := range groups {
			g := groupOf(i, 3+r.IntN(4), int64(20+r.IntN(80))*gib)
			for m := range g.Members {
				g.Members[m].Ready = r.IntN(6) > 0
				g.Members[m].MaxVolumes = r.IntN(2) * (5 + r.IntN(30))
			}
			mustSet(t, s, g)
		}
		ties := Ties{Fixed: map[string]string{}, Groups: map[string][]string{}}
		for i := range 120 {
			name := fmt.Sprint("v", i)
			p, err := s.Decide(Request{Volume: name, CacheBytes: 1 + r.Int64N(4*gib), Groups: []string{groupName(r.IntN(groups))}})
			if err != nil {
				continue
			}
			s.SetVolume(Volume{Name: name, Group: p.Group, Primary: p.Primary, Partner: p.Partner, CacheBytes: 1 + r.Int64N(4*gib)})
			if r.IntN(4) == 0 {
				ties.Fixed[name] = "it is tied"
			}
			if r.IntN(4) == 0 {
				ties.Groups[name] = []string{p.Group, groupName(r.IntN(groups))}
			}
		}
		for i := range groups {
			s.groups[groupName(i)].cordoned = r.IntN(5) == 0
			s.rescore(s.groups[groupName(i)])
		}
		p := s.Rebalance(ties)
		for _, m := range p.Moves {
			listed, is := ties.Groups[m.Volume]
			if ties.Fixed[m.Volume] != "" || is && !slices.Contains(listed, m.To.Group) || s.groups[m.From].cordoned {
				t.Errorf("move %+v: fixed %q, groups %v", m, ties.Fixed[m.Volume], listed)
			}
		}
		apply(t, s, p)
		if again := s.Rebalance(ties); len(again.Moves) > 0 && len(p.Moves) == 0 {
			t.Errorf("moves that were not found at first: %v", again.Moves)
		}
		if p.Even != s.even() {
			t.Errorf("it says even: %v, and after the moves that is %v", p.Even, s.even())
		}
		if p.Even && len(p.Staying) > 0 {
			t.Errorf("even, and %v stay", p.Staying)
		}
		for _, v := range p.Staying {
			if v.Reason == "" || slices.ContainsFunc(p.Moves, func(m Move) bool { return m.Volume == v.Volume }) {
				t.Errorf("staying %+v", v)
			}
		}
	})
}

func TestRebalanceSaysWhatStaysAndWhy(t *testing.T) {
	build := func(change func(small, large *Group)) *State {
		s := New()
		small, large := groupOf(0, 3, 100*gib), groupOf(1, 6, 100*gib)
		change(&small, &large)
		mustSet(t, s, small)
		mustSet(t, s, large)
		for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
			s.SetVolume(Volume{
				Name: name, Group: "g000", Primary: fmt.Sprint("g000-n", i%3), Partner: fmt.Sprint("g000-n", (i+1)%3), CacheBytes: 10 * gib,
			})
		}
		return s
	}
	all := func(v string) map[string]string {
		out := map[string]string{}
		for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
			out[name] = v
		}
		return out
	}
	tied := map[string][]string{}
	for name := range all("") {
		tied[name] = []string{"g000"}
	}
	for name, tc := range map[string]struct {
		change func(small, large *Group)
		ties   Ties
		moves  int
		even   bool
		says   string
	}{
		"four of six go to the group with twice the hosts": {func(_, _ *Group) {}, Ties{}, 4, true, ""},
		"those that cannot move":                           {func(_, _ *Group) {}, Ties{Fixed: all("it is attached")}, 0, false, "it is attached"},
		"one that can":                                     {func(_, _ *Group) {}, Ties{Fixed: map[string]string{"a": "it is attached"}}, 4, true, ""},
		"those that may be there only": {
			func(_, _ *Group) {}, Ties{Groups: tied}, 0, false, "it may be in these groups only: g000",
		},
		"no room": {
			func(_, large *Group) {
				for i := range large.Members {
					large.Members[i].Ready = i == 0
				}
			}, Ties{}, 0, false, "g001-n1 not ready",
		},
		"a cordoned group takes nothing":  {func(_, large *Group) { large.Cordoned = true }, Ties{}, 0, true, ""},
		"a cordoned group gives nothing":  {func(small, _ *Group) { small.Cordoned = true }, Ties{}, 0, true, ""},
		"a host that is cordoned is left": {func(_, large *Group) { large.Members[0].Ready = false }, Ties{}, 4, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := build(tc.change)
			p := s.Rebalance(tc.ties)
			apply(t, s, p)
			if len(p.Moves) != tc.moves || p.Even != tc.even {
				t.Errorf("%d moves, want %d; even %v: %+v", len(p.Moves), tc.moves, p.Even, p.Moves)
			}
			if (len(p.Staying) > 0) != (tc.says != "") {
				t.Errorf("staying %v", p.Staying)
			}
			for _, v := range p.Staying {
				if !strings.Contains(v.Reason, tc.says) {
					t.Errorf("%s stays: %s", v.Volume, v.Reason)
				}
			}
		})
	}
}

func TestEmptySaysWhatStaysAndWhy(t *testing.T) {
	s := New()
	mustSet(t, s, groupOf(0, 3, 100*gib))
	mustSet(t, s, groupOf(1, 3, 20*gib))
	closed := groupOf(2, 3, 1000*gib)
	closed.Cordoned = true
	mustSet(t, s, closed)
	for name, size := range map[string]int64{"fits": 10 * gib, "large": 30 * gib, "bound": gib, "busy": gib, "elsewhere": gib} {
		s.SetVolume(Volume{Name: name, Group: "g000", Primary: "g000-n0", Partner: "g000-n1", CacheBytes: size})
	}
	p, err := s.Empty("g000", Ties{
		Fixed:  map[string]string{"busy": "it is attached"},
		Groups: map[string][]string{"bound": {"g000"}, "elsewhere": {"g000", "g001"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var moved []string
	for _, m := range p.Moves {
		moved = append(moved, m.Volume+" "+m.To.Group)
	}
	if !slices.Equal(moved, []string{"fits g001", "elsewhere g001"}) {
		t.Errorf("moves %v", moved)
	}
	want := map[string]string{"bound": "it may be in group g000 only", "busy": "it is attached", "large": "g001-n0 too full"}
	for _, v := range p.Staying {
		if reason := want[v.Volume]; reason == "" || !strings.Contains(v.Reason, reason) {
			t.Errorf("%s stays: %s", v.Volume, v.Reason)
		}
	}
	if len(p.Staying) != len(want) {
		t.Errorf("staying %v", p.Staying)
	}
	if _, err := s.Empty("zz", Ties{}); !errors.Is(err, ErrNoGroup) {
		t.Errorf("an unknown group: %v", err)
	}
	if p, err := s.Empty("g001", Ties{}); err != nil || len(p.Moves) > 0 || len(p.Staying) > 0 {
		t.Errorf("an empty group: %+v, %v", p, err)
	}
}

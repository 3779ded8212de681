package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// largest is the size of the largest group that the API allows.
const largest = 16

// TestPairsStayWithinOneInEveryReachableState is the proof of choosePair's rule for equal volumes on
// groups of every size (and on the two nodes that are left of three when one is down): from the empty
// group, it follows every pair that any tie-break could choose, for every volume name there may be,
// until no new state appears.
func TestPairsStayWithinOneInEveryReachableState(t *testing.T) {
	for nodes := 2; nodes <= largest; nodes++ {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			start := make([]load, nodes)
			seen := map[string]bool{key(start): true}
			for queue := [][]load{start}; len(queue) > 0; queue = queue[1:] {
				for _, next := range successors(queue[0]) {
					replicas, primaries := spreads(next)
					if replicas > 1 || primaries > 1 {
						t.Fatalf("from %v to %v: spread of replicas %d, of primaries %d", queue[0], next, replicas, primaries)
					}
					if k := key(next); !seen[k] {
						seen[k] = true
						queue = append(queue, next)
					}
				}
			}
			if len(seen) < nodes {
				t.Fatalf("only %d states reached: the walk did not walk", len(seen))
			}
			t.Logf("%d states", len(seen))
		})
	}
}

// TestAnyImbalanceHeals starts from every imbalance that deletions can leave and follows every
// tie-break: replicas never get worse than they were, and after a bounded number of volumes both
// are within one and stay there.
func TestAnyImbalanceHeals(t *testing.T) {
	t.Run("three nodes", func(t *testing.T) { heals(t, 3, 4) })
	t.Run("four nodes", func(t *testing.T) { heals(t, 4, 2) })
	t.Run("five nodes", func(t *testing.T) { heals(t, 5, 2) })
}

func heals(t *testing.T, nodes, worst int) {
	tried := map[string]bool{}
	for _, start := range imbalances(nodes, worst) {
		if tried[key(start)] {
			continue
		}
		tried[key(start)] = true
		frontier := map[string][]load{key(start): start}
		before, _ := spreads(start)
		for range 3 * nodes * worst {
			next := map[string][]load{}
			for _, state := range frontier {
				for _, s := range successors(state) {
					next[key(s)] = s
					if after, _ := spreads(s); after > max(1, before) {
						t.Fatalf("from %v, placing made the spread of replicas %d: %v", start, after, s)
					}
				}
			}
			frontier = next
		}
		for _, state := range frontier {
			if replicas, primaries := spreads(state); replicas > 1 || primaries > 1 {
				t.Fatalf("from %v still unbalanced: %v", start, state)
			}
		}
	}
}

type load struct{ replicas, primaries int }

// successors places one more equal volume by all pairs of the lowest cost.
func successors(loads []load) [][]load {
	nodes := make([]*node, len(loads))
	for i, l := range loads {
		nodes[i] = &node{
			Member:   Member{Name: fmt.Sprint(i), Ready: true, CapacityBytes: 1 << 40},
			replicas: l.replicas, primaries: l.primaries, allocated: int64(l.replicas) << 20,
		}
	}
	var best pair
	var out [][]load
	for i, a := range nodes {
		for j, b := range nodes {
			if i == j {
				continue
			}
			p := newPair(a, b, 1<<20)
			switch {
			case best.primary == nil || p.cheaper(best):
				best, out = p, nil
			case best.cheaper(p):
				continue
			}
			next := append([]load(nil), loads...)
			next[i].replicas++
			next[i].primaries++
			next[j].replicas++
			out = append(out, next)
		}
	}
	return out
}

// key identifies states up to the order of the nodes and what is common to all: rule and spread only
// compare nodes.
func key(loads []load) string {
	base := loads[0]
	for _, l := range loads {
		base.replicas, base.primaries = min(base.replicas, l.replicas), min(base.primaries, l.primaries)
	}
	var each []string
	for _, l := range loads {
		each = append(each, fmt.Sprintf("%d/%d", l.replicas-base.replicas, l.primaries-base.primaries))
	}
	slices.Sort(each)
	return strings.Join(each, " ")
}

func spreads(loads []load) (replicas, primaries int) {
	lo, hi := loads[0], loads[0]
	for _, l := range loads {
		lo.replicas, hi.replicas = min(lo.replicas, l.replicas), max(hi.replicas, l.replicas)
		lo.primaries, hi.primaries = min(lo.primaries, l.primaries), max(hi.primaries, l.primaries)
	}
	return hi.replicas - lo.replicas, hi.primaries - lo.primaries
}

// imbalances are all loads of so many nodes up to a bound that some set of volumes really gives:
// every node is primary at most as often as it holds a replica, each volume has one primary and two
// replicas, and no node holds more than one of them.
func imbalances(nodes, worst int) [][]load {
	var out [][]load
	n, codes := worst+1, 1
	for range 2 * nodes {
		codes *= n
	}
	for code := range codes {
		loads, c, volumes, replicas := make([]load, nodes), code, 0, 0
		valid := true
		for i := range loads {
			loads[i].replicas, c = c%n, c/n
			loads[i].primaries, c = c%n, c/n
			volumes += loads[i].primaries
			replicas += loads[i].replicas
			valid = valid && loads[i].primaries <= loads[i].replicas
		}
		for _, l := range loads {
			valid = valid && l.replicas <= volumes
		}
		if valid && replicas == 2*volumes {
			out = append(out, loads)
		}
	}
	return out
}

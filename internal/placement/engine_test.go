package placement

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// withLog is a group of three hosts, of which these have the engine log. The last one has the most room.
func withLog(i int, hosts ...int) Group {
	g := groupOf(i, 3, 100*gib)
	g.Members[2].CapacityBytes *= 2
	for _, m := range hosts {
		g.Members[m].Engines = []string{"log"}
	}
	return g
}

func TestAVolumeGoesToHostsThatHaveItsEngine(t *testing.T) {
	s := New()
	mustSet(t, s, withLog(0, 2))    // the second host is missing
	mustSet(t, s, withLog(1, 0, 1)) // not the one with the most room
	mustSet(t, s, withLog(2))
	ofLog := Request{Volume: "v", CacheBytes: 10 * gib, Engine: "log"}
	p := place(t, s, ofLog)
	if hosts := []string{p.Primary, p.Partner}; p.Group != "g001" || slices.Contains(hosts, "g001-n2") {
		t.Errorf("it went to %+v", p)
	}
	stays := ofLog
	stays.Primary, stays.Stays = "g001-n0", true
	if partners, err := s.Partners(stays); err != nil || !slices.Equal(partners, []string{"g001-n1"}) {
		t.Errorf("its partners can be %q, %v", partners, err)
	}
	stays.Primary = "g001-n2"
	if _, err := s.Decide(stays); !errors.Is(err, ErrNoFit) || !strings.Contains(err.Error(), "g001-n2 without the cache engine log") {
		t.Errorf("%v", err)
	}
	u := s.Usage()
	if u[0].LargestOf["log"] != 0 || u[1].LargestOf["log"] != 90*gib || u[2].LargestOf != nil || u[0].LargestBytes != 100*gib {
		t.Errorf("%+v", u)
	}
}

func TestWithoutTwoHostsThatHaveTheEngineTheReasonSaysSo(t *testing.T) {
	s := New()
	mustSet(t, s, withLog(0, 2))
	_, err := s.Decide(Request{Volume: "v", CacheBytes: gib, Engine: "log"})
	const want = "no group has two ready nodes with 1 GiB of cache free and the cache engine log: " +
		"g000: g000-n0 without the cache engine log, g000-n1 without the cache engine log, g000-n2 has room"
	if !errors.Is(err, ErrNoFit) || err.Error() != want {
		t.Errorf("%v", err)
	}
	if _, err := s.Decide(Request{Volume: "v", CacheBytes: gib}); err != nil {
		t.Errorf("a volume of the engine that every host has: %v", err)
	}
}

// A move to a group that cannot serve the volume is not proposed.
func TestRebalanceKeepsVolumesOnHostsWithTheirEngine(t *testing.T) {
	s := New()
	mustSet(t, s, withLog(0, 0, 1, 2))
	for i := range 8 {
		place(t, s, Request{Volume: string(rune('a' + i)), CacheBytes: 20 * gib, Engine: "log"})
	}
	mustSet(t, s, withLog(1)) // empty, and without the engine
	if r := s.Rebalance(Ties{}); len(r.Moves) != 0 {
		t.Errorf("%+v", r.Moves)
	}
	mustSet(t, s, withLog(1, 0, 1, 2))
	if r := s.Rebalance(Ties{}); len(r.Moves) == 0 {
		t.Error("nothing is proposed although the other group has the engine now")
	}
}

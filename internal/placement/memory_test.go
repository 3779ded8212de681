package placement

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// withMemory is a group of hosts with much space, and with memory for this many GiB of connected caches.
func withMemory(i int, connectable ...int64) Group {
	g := groupOf(i, len(connectable), 1000*gib)
	for m, n := range connectable {
		bytes := n * gib
		g.Members[m].ConnectableBytes = &bytes
	}
	return g
}

func TestAHostTakesNoMoreReplicasThanItHasMemoryToConnectThemAll(t *testing.T) {
	s := New()
	mustSet(t, s, withMemory(0, 30, 30, 30))
	mustSet(t, s, withMemory(1, 0, 0, 5))
	for i := range 3 {
		if p := place(t, s, Request{Volume: string(rune('a' + i)), CacheBytes: 15 * gib}); p.Group != "g000" {
			t.Fatalf("it went to %+v", p)
		}
	}
	u := s.Usage()
	if u[0].LargestBytes != 0 || u[0].RoomBytes != 0 || u[1].LargestBytes != 0 {
		t.Errorf("there is room left: %+v", u)
	}
	_, err := s.Decide(Request{Volume: "more", CacheBytes: gib})
	if !errors.Is(err, ErrNoFit) || !strings.Contains(err.Error(), "g000-n0 without memory for more connected caches") {
		t.Errorf("%v", err)
	}
	more := withMemory(0, 30, 31, 31)
	mustSet(t, s, more)
	if p, err := s.Decide(Request{Volume: "more", CacheBytes: gib}); err != nil || p.Primary == "g000-n0" || p.Partner == "g000-n0" {
		t.Errorf("two hosts have memory again: %+v, %v", p, err)
	}
	for m := range more.Members {
		more.Members[m].ConnectableBytes = nil
	}
	mustSet(t, s, more)
	if _, err := s.Decide(Request{Volume: "more", CacheBytes: 100 * gib}); err != nil {
		t.Errorf("hosts that do not say what memory they have are not limited by it: %v", err)
	}
}

func TestMemoryDoesNotChangeWhichGroupIsTheFullest(t *testing.T) {
	s := New()
	mustSet(t, s, withMemory(0, 900, 900, 900))
	mustSet(t, s, withMemory(1, 100, 100, 100))
	for i := range 8 {
		place(t, s, Request{Volume: string(rune('a' + i)), CacheBytes: gib})
		checkWithinOne(t, s.Usage()) // what is available changes all the time, and so would the balance
	}
}

func TestACopyOfAVolumeThatStaysPrefersAHostWithMemory(t *testing.T) {
	s := New()
	g := withMemory(0, 100, 0, 100, 0)
	mustSet(t, s, g)
	s.SetVolume(Volume{Name: "other", Group: g.Name, Primary: "g000-n2", Partner: "g000-n0", CacheBytes: 20 * gib})
	r := Request{Volume: "v", CacheBytes: 10 * gib, Primary: "g000-n0", Stays: true}
	got, err := s.Partners(r)
	if err != nil || len(got) != 3 || got[0] != "g000-n2" {
		t.Errorf("%v, %v; n2 is the fullest, and the only one with memory", got, err)
	}
	r.Partner = "g000-n1"
	if p, err := s.Decide(r); err != nil || p.Partner != "g000-n1" {
		t.Errorf("a second copy is better than none: %+v, %v", p, err)
	}
	r.Partner, r.Stays = "", false
	if got, err := s.Partners(r); err != nil || !slices.Equal(got, []string{"g000-n2"}) {
		t.Errorf("a new volume goes to hosts with memory only: %v, %v", got, err)
	}
}

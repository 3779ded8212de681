package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestNoFitSaysWhatIsShortWhere(t *testing.T) {
	s := New()
	mustSet(t, s, Group{Name: "a", Cordoned: true, Members: equalGroup(1, 100*gib).Members})
	mustSet(t, s, Group{Name: "b", Members: []Member{
		{Name: "b1", Ready: true, CapacityBytes: 20 * gib},
		{Name: "b2", Ready: true, CapacityBytes: 20*gib - 1, OtherBytes: 18 * gib},
		{Name: "b3", CapacityBytes: 100 * gib},
	}})
	mustSet(t, s, Group{Name: "c", Members: []Member{{Name: "c1", Ready: true, CapacityBytes: 9 * gib, MaxVolumes: 1}}})
	s.SetVolume(Volume{Name: "v", Group: "c", Primary: "c1", Partner: "elsewhere", CacheBytes: gib})
	for _, c := range []struct {
		name    string
		request Request
		want    string
	}{
		{"all groups", Request{CacheBytes: 10 * gib}, "no group has two ready nodes with 10 GiB of cache free: " +
			"b: b1 has room, b2 too full, b3 not ready; a: cordoned; c: c1 at its limit of 1 replicas"},
		{"only an unknown one", Request{CacheBytes: gib, Groups: []string{"x"}}, "no group has two ready nodes with 1 GiB of cache free: " +
			"x: there is no such NodeGroup"},
		{"scheduler's node not ready", Request{CacheBytes: gib, Primary: "b3"}, "no group has two ready nodes with 1 GiB of cache free, " +
			"one of them b3, which the scheduler chose: b: b1 has room, b2 has room, b3 not ready"},
		{"scheduler's node without group", Request{CacheBytes: gib, Primary: "z"}, "no group has two ready nodes with 1 GiB of cache free, " +
			"one of them z, which the scheduler chose: z: the node is in no NodeGroup"},
		{"scheduler's node not allowed", Request{CacheBytes: gib, Primary: "b1", Groups: []string{"c"}}, "no group has two ready nodes " +
			"with 1 GiB of cache free, one of them b1, which the scheduler chose: b: not among the allowed groups c"},
		{"no size", Request{}, "no group has two ready nodes with 0 bytes of cache free: request: the cache size must be above zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := s.Decide(c.request)
			if !errors.Is(err, ErrNoFit) {
				t.Fatalf("got %v, %v", p, err)
			}
			if err.Error() != c.want {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
		})
	}
}

func TestNoFitStaysShortWithManyGroups(t *testing.T) {
	s := New()
	for i := range 1000 {
		mustSet(t, s, equalGroup(i, gib))
	}
	_, err := s.Decide(Request{Volume: "v", CacheBytes: 2 * gib})
	if err == nil || len(err.Error()) > 1000 || !strings.Contains(err.Error(), "and 995 more") {
		t.Fatalf("got %v", err)
	}
}

func TestSchedulersNodeIsThePrimary(t *testing.T) {
	s := New()
	mustSet(t, s, equalGroup(0, 100*gib))
	mustSet(t, s, equalGroup(1, 100*gib))
	partners := map[string]int{}
	for i := range 10 {
		p := place(t, s, Request{Volume: fmt.Sprint(i), CacheBytes: gib, Primary: "g001-n2"})
		if p.Group != "g001" || p.Primary != "g001-n2" {
			t.Fatalf("got %+v", p)
		}
		partners[p.Partner]++
	}
	if partners["g001-n0"] != 5 || partners["g001-n1"] != 5 {
		t.Fatalf("partners %v", partners)
	}
}

func TestPartnersAreTheHostsWithRoomTheLeastLoadedFirst(t *testing.T) {
	s := New()
	g := groupOf(0, 7, 10*gib)
	g.Members[5].Ready = false
	mustSet(t, s, g)
	for i, hosts := range [][2]int{{0, 1}, {2, 3}, {2, 6}} {
		s.SetVolume(Volume{
			Name: fmt.Sprint(i), Group: "g000", Primary: fmt.Sprintf("g000-n%d", hosts[0]), Partner: fmt.Sprintf("g000-n%d", hosts[1]),
			CacheBytes: int64(3+i) * gib,
		})
	}
	r := Request{Volume: "0", CacheBytes: 3 * gib, Groups: []string{"g000"}, Primary: "g000-n0", Without: []string{"g000-n1"}, Stays: true}
	got, err := s.Partners(r)
	if want := []string{"g000-n4", "g000-n3", "g000-n6"}; err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v; want %v: n1 is not allowed, n2 too full, n5 not ready", got, err, want)
	}
	for _, partner := range got {
		r := r
		r.Partner = partner
		if p, err := s.Decide(r); err != nil || p.Partner != partner {
			t.Errorf("asked for %s: %+v, %v", partner, p, err)
		}
	}
	r.Partner = "g000-n2"
	if p, err := s.Decide(r); !errors.Is(err, ErrNoFit) || !strings.Contains(err.Error(), "n1 may not have it, g000-n2 too full") {
		t.Errorf("got %+v, %v", p, err)
	}
	r.Partner, r.Without = "", []string{"g000-n1", "g000-n3", "g000-n4", "g000-n6"}
	if got, err := s.Partners(r); !errors.Is(err, ErrNoFit) || len(got) > 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if v, _ := s.Volume("0"); v.Partner != "g000-n1" {
		t.Errorf("asking moved the volume: %+v", v)
	}
}

func TestANodeThatReturnsEmptyTakesTheNextPrimaries(t *testing.T) {
	s := New()
	g := equalGroup(0, 100*gib)
	g.Members[2].Ready = false
	mustSet(t, s, g)
	for i := range 10 {
		place(t, s, Request{Volume: fmt.Sprint("before", i), CacheBytes: gib})
	}
	g.Members[2].Ready = true
	mustSet(t, s, g)
	for i := range 5 {
		if p := place(t, s, Request{Volume: fmt.Sprint("after", i), CacheBytes: gib}); p.Primary != "g000-n2" {
			t.Fatalf("volume %d went to %+v", i, p)
		}
	}
}

func TestANodeBelongsToOneGroup(t *testing.T) {
	s := New()
	mustSet(t, s, equalGroup(0, gib))
	claim := equalGroup(1, gib)
	claim.Members[2].Name = "g000-n1"
	if err := s.SetGroup(claim); !errors.Is(err, ErrNodeTaken) || !strings.Contains(err.Error(), "g000-n1 of group g000") {
		t.Fatalf("got %v", err)
	}
	has := func(members ...int) {
		t.Helper()
		for i, u := range s.Usage() {
			if len(u.Members) != members[i] || u.CapacityBytes != int64(members[i])*gib {
				t.Errorf("group %s has %+v, want %d members", u.Group, u, members[i])
			}
		}
	}
	has(3, 2) // the rest of it is entered
	s.RemoveGroup("g000")
	mustSet(t, s, claim)
	has(3)
	claim.Members[0].Name = claim.Members[1].Name
	if err := s.SetGroup(claim); !errors.Is(err, ErrNodeTaken) || !strings.Contains(err.Error(), "twice") {
		t.Errorf("got %v", err)
	}
	has(2)
}

func TestDecidingAgainIgnoresTheVolumesOwnAllocation(t *testing.T) {
	l := NewLedger(New())
	mustSet(t, l, equalGroup(0, 10*gib))
	r := Request{Volume: "v", CacheBytes: 8 * gib}
	first, err := l.Reserve(r)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.Reserve(Request{Volume: "v", CacheBytes: gib}); err != nil || again != first {
		t.Fatalf("the repeated call got %+v, %v, the first %+v", again, err, first)
	}
	r.Primary = first.Partner
	if moved, err := l.Move(r); err != nil || moved.Primary != first.Partner {
		t.Fatalf("got %+v, %v", moved, err)
	}
	r.CacheBytes = 11 * gib
	if _, err := l.Move(r); !errors.Is(err, ErrNoFit) {
		t.Fatalf("got %v", err)
	}
	if v, ok := l.Volume("v"); !ok || v.Primary != first.Partner || v.CacheBytes != 8*gib {
		t.Fatalf("a move that failed changed the record: %+v", v)
	}
}

func TestUsageReportsWhatStillFits(t *testing.T) {
	s := New()
	g := equalGroup(0, 10*gib)
	g.Members[0].CapacityBytes = 100 * gib
	mustSet(t, s, g)
	s.SetVolume(Volume{Name: "v", Group: g.Name, Primary: "g000-n1", Partner: "g000-n0", CacheBytes: 4 * gib})
	u := s.Usage()[0]
	if u.LargestBytes != 10*gib || u.RoomBytes != 16*gib || u.AllocatedBytes != 8*gib || u.Volumes != 1 {
		t.Fatalf("got %+v", u)
	}
	g.Cordoned = true
	mustSet(t, s, g)
	if u := s.Usage()[0]; u.LargestBytes != 0 || u.RoomBytes != 0 {
		t.Fatalf("cordoned: %+v", u)
	}
}

// BenchmarkDecide: 1,000 groups, 100,000 volumes of one size, so that all shares tie: the most
// expensive case.
func BenchmarkDecide(b *testing.B) {
	for _, groups := range []int{10, 1000} {
		b.Run(fmt.Sprintf("%dgroups", groups), func(b *testing.B) {
			s := New()
			for i := range groups {
				if err := s.SetGroup(equalGroup(i, 1<<50)); err != nil {
					b.Fatal(err)
				}
			}
			fill(b, s, 100*groups)
			r := Request{Volume: "new", CacheBytes: gib}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Decide(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReserveRelease is a whole decision with its record.
func BenchmarkReserveRelease(b *testing.B) {
	s := New()
	for i := range 1000 {
		if err := s.SetGroup(equalGroup(i, 1<<50)); err != nil {
			b.Fatal(err)
		}
	}
	fill(b, s, 100_000)
	l := NewLedger(s)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := l.Reserve(Request{Volume: "new", CacheBytes: gib}); err != nil {
			b.Fatal(err)
		}
		l.Release("new")
	}
}

func fill(b *testing.B, s *State, volumes int) {
	for i := range volumes {
		r := Request{Volume: fmt.Sprintf("v%d", i), CacheBytes: gib}
		p, err := s.Decide(r)
		if err != nil {
			b.Fatal(err)
		}
		s.SetVolume(Volume{Name: r.Volume, Group: p.Group, Primary: p.Primary, Partner: p.Partner, CacheBytes: r.CacheBytes})
	}
}

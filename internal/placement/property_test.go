package placement

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const gib = 1 << 30

var firstSeed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "the first seed, to run again what a failure printed")

// eachSeed runs a property on seeds that differ from run to run; a failure prints its seed as the
// name of the subtest.
func eachSeed(t *testing.T, property func(t *testing.T, r *rand.Rand)) {
	base := *firstSeed
	for i := range uint64(150) {
		seed := base + i
		if ok := t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { property(t, rand.New(rand.NewPCG(seed, 0))) }); !ok {
			return
		}
	}
}

func groupName(i int) string { return fmt.Sprintf("g%03d", i) }

func equalGroup(i int, capacity int64) Group { return groupOf(i, 3, capacity) }

// groupOf returns a group of so many hosts of one size.
func groupOf(i, hosts int, capacity int64) Group {
	g := Group{Name: groupName(i)}
	for m := range hosts {
		g.Members = append(g.Members, Member{Name: fmt.Sprintf("%s-n%d", g.Name, m), Ready: true, CapacityBytes: capacity})
	}
	return g
}

func mustSet(t *testing.T, s interface{ SetGroup(Group) error }, g Group) {
	t.Helper()
	if err := s.SetGroup(g); err != nil {
		t.Fatal(err)
	}
}

func checkWithinOne(t *testing.T, usage []Usage) {
	t.Helper()
	lo, hi := usage[0].Volumes, usage[0].Volumes
	for _, u := range usage {
		lo, hi = min(lo, u.Volumes), max(hi, u.Volumes)
		loads := make([]load, 0, len(u.Members))
		for _, m := range u.Members {
			loads = append(loads, load{m.Replicas, m.Primaries})
		}
		if replicas, primaries := spreads(loads); replicas > 1 || primaries > 1 {
			t.Fatalf("group %s: replicas/primaries %v", u.Group, loads)
		}
	}
	if hi-lo > 1 {
		t.Fatalf("volumes in groups: from %d to %d", lo, hi)
	}
}

func TestEqualVolumesSpreadWithinOneAtEveryStepAndFillEverything(t *testing.T) {
	eachSeed(t, func(t *testing.T, r *rand.Rand) {
		groups, hosts, size := 1+r.IntN(12), 3+r.IntN(largest-2), int64(1+r.IntN(5))*gib
		perNode := int64(1 + r.IntN(20))
		capacity := perNode*size + r.Int64N(size)/2
		s := New()
		for _, i := range r.Perm(groups) {
			mustSet(t, s, groupOf(i, hosts, capacity))
		}
		fits := groups * (hosts * int(perNode) / 2)
		for i := range fits {
			place(t, s, Request{Volume: fmt.Sprintf("v%d", i), CacheBytes: size})
			checkWithinOne(t, s.Usage())
		}
		if p, err := s.Decide(Request{Volume: "more", CacheBytes: size}); !errors.Is(err, ErrNoFit) {
			t.Fatalf("placed %v beyond capacity, error %v", p, err)
		}
	})
}

func place(t *testing.T, s *State, r Request) Placement {
	t.Helper()
	p, err := s.Decide(r)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	s.SetVolume(Volume{
		Name: r.Volume, Group: p.Group, Primary: p.Primary, Partner: p.Partner, CacheBytes: r.CacheBytes, Engine: r.Engine,
	})
	return p
}

// TestGroupsOfDifferentSizeFillInProportion: no group gets a volume while another would be less
// full after taking it.
func TestGroupsOfDifferentSizeFillInProportion(t *testing.T) {
	eachSeed(t, func(t *testing.T, r *rand.Rand) {
		s := New()
		for i := range 1 + r.IntN(10) {
			mustSet(t, s, groupOf(i, 3+r.IntN(largest-2), int64(10+r.IntN(90))*gib))
		}
		for i := range 60 {
			size := int64(1 + r.IntN(2*gib))
			before := s.Usage()
			if !slices.ContainsFunc(before, func(u Usage) bool { return u.LargestBytes >= size }) {
				continue
			}
			p := place(t, s, Request{Volume: fmt.Sprint(i), CacheBytes: size})
			chosen := before[slices.IndexFunc(before, func(u Usage) bool { return u.Group == p.Group })]
			for _, u := range before {
				after := func(u Usage) float64 { return share(u.AllocatedBytes+2*size, u.CapacityBytes) }
				if u.LargestBytes >= size && after(u) < after(chosen) {
					t.Fatalf("volume %d went to %+v, not to %+v", i, chosen, u)
				}
			}
		}
	})
}

// world is what the random test knows without the package's sums.
type world struct {
	groups  map[string]Group
	volumes map[string]Volume
}

func (w *world) used(node string) (bytes int64, replicas int) {
	for _, v := range w.volumes {
		if v.Primary == node || v.Partner == node {
			bytes, replicas = bytes+v.CacheBytes, replicas+1
		}
	}
	return bytes, replicas
}

func (w *world) takes(m Member, r Request) bool {
	bytes, replicas := w.used(m.Name)
	if m.ConnectableBytes != nil && !r.Stays && *m.ConnectableBytes-bytes < r.CacheBytes {
		return false
	}
	return m.Ready && m.CapacityBytes-m.OtherBytes-bytes >= r.CacheBytes && (m.MaxVolumes == 0 || replicas < m.MaxVolumes)
}

func (w *world) fits(r Request) bool {
	for _, g := range w.groups {
		if g.Cordoned && !r.Stays || (len(r.Groups) > 0 && !slices.Contains(r.Groups, g.Name)) {
			continue
		}
		takers, primary, partner := 0, r.Primary == "", r.Partner == ""
		for _, m := range g.Members {
			if w.takes(m, r) {
				takers++
				primary = primary || m.Name == r.Primary
				partner = partner || m.Name == r.Partner
			}
		}
		if takers >= 2 && primary && partner && (r.Partner == "" || r.Partner != r.Primary) {
			return true
		}
	}
	return false
}

func (w *world) check(t *testing.T, p Placement, r Request) {
	t.Helper()
	g, ok := w.groups[p.Group]
	switch {
	case !ok || g.Cordoned && !r.Stays:
		t.Fatalf("placed on group %+v, known %v", g, ok)
	case len(r.Groups) > 0 && !slices.Contains(r.Groups, p.Group):
		t.Fatalf("placed on %s, allowed %v", p.Group, r.Groups)
	case p.Primary == p.Partner || (r.Primary != "" && p.Primary != r.Primary) || (r.Partner != "" && p.Partner != r.Partner):
		t.Fatalf("placed on %+v for %+v", p, r)
	}
	for _, name := range []string{p.Primary, p.Partner} {
		i := slices.IndexFunc(g.Members, func(m Member) bool { return m.Name == name })
		if i < 0 || !w.takes(g.Members[i], r) {
			t.Fatalf("node %s cannot take %+v of group %+v", name, r, g)
		}
	}
}

// rebuilt is the same world told in another order.
func (w *world) rebuilt(t *testing.T, r *rand.Rand) *State {
	s := New()
	var steps []func()
	for _, v := range w.volumes {
		steps = append(steps, func() { s.SetVolume(v) })
	}
	for _, g := range w.groups {
		steps = append(steps, func() { mustSet(t, s, g) })
	}
	r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
	for _, step := range steps {
		step()
	}
	return s
}

// TestRandomLife drives a state through everything that happens to a cluster, and compares each
// decision with a naive model: it fits if and only if the model says so, only where the model says
// so, and a state built again in another order agrees.
func TestRandomLife(t *testing.T) {
	eachSeed(t, func(t *testing.T, r *rand.Rand) {
		w := &world{groups: map[string]Group{}, volumes: map[string]Volume{}}
		s := New()
		change := func(g Group) {
			mustSet(t, s, g)
			w.groups[g.Name] = g
		}
		groups := 1 + r.IntN(6)
		for i := range groups {
			g := groupOf(i, 3+r.IntN(4), 0)
			for m := range g.Members {
				g.Members[m].CapacityBytes = int64(r.IntN(40)) * gib
				g.Members[m].MaxVolumes = r.IntN(2) * (1 + r.IntN(8))
				g.Members[m].OtherBytes = int64(r.IntN(2)) * gib
				if r.IntN(2) == 0 {
					memory := int64(r.IntN(40)) * gib
					g.Members[m].ConnectableBytes = &memory
				}
			}
			change(g)
		}
		for i := range 80 {
			g := groupName(r.IntN(groups))
			switch event := r.IntN(20); {
			case event < 10:
				req := Request{Volume: fmt.Sprint("v", i), CacheBytes: 1 + r.Int64N(8*gib)}
				if r.IntN(3) == 0 {
					req.Groups = []string{g, groupName(r.IntN(groups + 1))}
				}
				if r.IntN(3) == 0 {
					req.Primary = fmt.Sprintf("%s-n%d", g, r.IntN(4))
					req.Stays = r.IntN(2) == 0
					if r.IntN(3) == 0 {
						req.Partner = fmt.Sprintf("%s-n%d", g, r.IntN(4))
					}
				}
				p, err := s.Decide(req)
				if again, errAgain := w.rebuilt(t, r).Decide(req); again != p || fmt.Sprint(errAgain) != fmt.Sprint(err) {
					t.Fatalf("%+v: %+v, %v; the same state built anew: %+v, %v", req, p, err, again, errAgain)
				}
				if fits := w.fits(req); fits != (err == nil) || (err != nil && !errors.Is(err, ErrNoFit)) {
					t.Fatalf("%+v: fits %v, error %v", req, fits, err)
				}
				if err == nil {
					w.check(t, p, req)
					v := Volume{Name: req.Volume, Group: p.Group, Primary: p.Primary, Partner: p.Partner, CacheBytes: req.CacheBytes}
					s.SetVolume(v)
					w.volumes[v.Name] = v
				}
			case event < 14:
				for name := range w.volumes {
					s.RemoveVolume(name)
					delete(w.volumes, name)
					break
				}
			case event < 18:
				changed, ok := w.groups[g]
				if !ok {
					var i int
					fmt.Sscanf(g, "g%d", &i)
					changed = equalGroup(i, 10*gib)
				}
				changed.Members = slices.Clone(changed.Members)
				m := &changed.Members[r.IntN(3)]
				m.Ready = !m.Ready
				change(changed)
			case event < 19:
				changed, ok := w.groups[g]
				if ok {
					changed.Cordoned = !changed.Cordoned
					change(changed)
				}
			default:
				s.RemoveGroup(g)
				delete(w.groups, g)
			}
		}
	})
}

// TestCallsInFlight: 100 at once, some fail and are dropped; no overbooking, and the survivors plus
// as many more are even.
func TestCallsInFlight(t *testing.T) {
	eachSeed(t, func(t *testing.T, r *rand.Rand) {
		groups := 1 + r.IntN(5)
		l := NewLedger(New())
		for i := range groups {
			mustSet(t, l, equalGroup(i, 1000*gib))
		}
		done := make(chan string)
		fails := make([]bool, 100)
		for i := range fails {
			fails[i] = r.IntN(4) == 0
		}
		for i := range 100 {
			go func() {
				name := fmt.Sprint("v", i)
				if _, err := l.Reserve(Request{Volume: name, CacheBytes: gib}); err != nil {
					t.Error(err)
				}
				done <- name
			}()
		}
		for range 100 {
			<-done
		}
		checkWithinOne(t, l.Usage())
		for i, failed := range fails {
			if failed {
				l.Release(fmt.Sprint("v", i))
			}
		}
		for i := range 20 * groups * 3 {
			if _, err := l.Reserve(Request{Volume: fmt.Sprint("w", i), CacheBytes: gib}); err != nil {
				t.Fatal(err)
			}
		}
		checkWithinOne(t, l.Usage())
	})
}

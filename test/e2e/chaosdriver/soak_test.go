//go:build e2e

package chaosdriver

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
	"github.com/escache/escache-csi/test/soakplan"
)

// soak keeps several volumes in use, breaks things at random, and looks after each round whether all that
// was acknowledged is there.
type soak struct {
	*testing.T
	*world

	plan    soakplan.Plan
	without []string // faults that are left out: ROUND.FAULT
	volumes []*scene
	cutting sync.Mutex
	cuts    []cut // that are in force
	// waiting are volumes without a pod that only their former host can go on with.
	waiting map[*scene]bool
	begun   time.Time
	faults  map[soakplan.Kind]int
	moves   int
	rounds  int                           // that are over
	current int                           // number of the round that has begun last, or 0
	use     map[string]labtest.ServiceUse // after the first round
}

type cut struct {
	host string
	what labclient.Cut
}

// TestSoak runs rounds of random faults for SOAK_MINUTES, until one of them has lost something. SOAK_SEED repeats the rounds of
// another run, SOAK_ROUNDS=FROM-TO some of them, and SOAK_WITHOUT=ROUND.FAULT,… leaves faults out. Where the volumes are when a round
// begins comes of the rounds before it, and is not repeated with a round alone. Each round prints it.
func TestSoak(t *testing.T) {
	if os.Getenv("SOAK_MINUTES") == "" {
		t.Skip("it runs for SOAK_MINUTES: `make soak`")
	}
	minutes := labtest.Number(t, "SOAK_MINUTES", 0)
	seed := labtest.Number(t, "SOAK_SEED", 1+rand.IntN(1_000_000))
	first, last := rounds(t)
	w := open(t)
	k := &soak{
		T: t, world: w, begun: time.Now(), faults: map[soakplan.Kind]int{}, waiting: map[*scene]bool{},
		plan:    soakplan.Plan{Seed: uint64(seed), Hosts: len(w.lab.Hosts), Volumes: labtest.Number(t, "SOAK_VOLUMES", 4)},
		without: strings.Split(os.Getenv("SOAK_WITHOUT"), ","),
	}
	t.Cleanup(func() { w.cleanUp(t) })
	t.Cleanup(k.report)
	k.sayf("SOAK_SEED=%d, %d volumes, %d minutes", seed, k.plan.Volumes, minutes)
	for i := range k.plan.Volumes {
		s := w.newScene(t)
		k.volumes = append(k.volumes, s)
		t.Cleanup(func() { s.watch.end(t) })
		s.openOn(w.lab.Hosts[i%len(w.lab.Hosts)])
		s.write()
	}
	k.begun = time.Now()
	for n := first; n <= last && time.Since(k.begun) < time.Duration(minutes)*time.Minute; n++ {
		k.current = n
		k.round(k.plan.Round(n))
		k.judge()
		if k.rounds == 0 {
			k.use = k.uses()
		}
		k.rounds++
	}
	k.usesMore()
	for _, s := range k.volumes {
		s.takenOver = true // the hosts of the second copies have other volumes, so none is taken over to be read
		s.finish()
	}
}

func rounds(t *testing.T) (first, last int) {
	t.Helper()
	const variable, all = "SOAK_ROUNDS", 1_000_000
	text := os.Getenv(variable)
	if text == "" {
		return 1, all
	}
	if n, err := fmt.Sscanf(text, "%d-%d", &first, &last); n != 2 || err != nil || first < 1 || last < first {
		t.Fatalf("%s=%q is not FROM-TO, numbers from 1 of which the second is not the lesser one", variable, text)
	}
	return first, last
}

// sayf prints at once what happens: whatever ends the run, this is known.
func (k *soak) sayf(format string, args ...any) {
	fmt.Printf("%8s  %s\n", time.Since(k.begun).Round(100*time.Millisecond), fmt.Sprintf(format, args...))
}

// judge ends the run if anything is wrong by now: what comes later would only hide it.
func (k *soak) judge() {
	k.Helper()
	for _, s := range k.volumes {
		s.watch.report(k)
	}
	if k.Failed() {
		k.FailNow()
	}
}

// uses returns what the services of all hosts hold on to. One that is just starting is left out.
func (k *soak) uses() map[string]labtest.ServiceUse {
	k.Helper()
	all := map[string]labtest.ServiceUse{}
	for _, h := range k.lab.Hosts {
		for _, service := range []string{"escached", "csi-node"} {
			use, err := h.UseOf(k.Context(), service)
			if err != nil {
				k.Logf("%v", err)
				continue
			}
			all[service+" of "+h.Name] = use
		}
	}
	return all
}

// usesMore fails the run for services that have been the same processes since the first round, and have many more files open or
// threads since. Some more are no sign: the volumes are on other hosts, and a program that hung has cost a thread. Faults end most
// processes of a long run, so only what grows with nearly each round is found.
func (k *soak) usesMore() {
	k.Helper()
	const files, threads = 20, 50
	for name, now := range k.uses() {
		before, ok := k.use[name]
		if !ok || before.PID != now.PID {
			continue
		}
		k.sayf("%s: %s after the first round, and now %s", name, before, now)
		if now.Files > before.Files+files || now.Threads > before.Threads+threads {
			k.Errorf("%s holds on to more and more: %s after the first round, and now %s", name, before, now)
		}
	}
}

// report counts what was done. After a failure it says how to repeat it.
func (k *soak) report() {
	acks, lost, double, wrong := 0, 0, 0, 0
	var recovered []time.Duration
	for _, s := range k.volumes {
		acks += len(s.check.Acks())
		lost += s.check.Lost
		double += s.check.Double
		if s.watch != nil {
			wrong += s.watch.reported
		}
		recovered = append(recovered, s.recovered...)
	}
	k.sayf("%d rounds, %d moves, %d writes acknowledged, %d lost, %d of two writers, and %d times a volume was seen as it must never be",
		k.rounds, k.moves, acks, lost, double, wrong)
	for _, kind := range slices.Sorted(maps.Keys(k.faults)) {
		k.sayf("%4d %s", k.faults[kind], kind)
	}
	if len(recovered) > 0 {
		slices.Sort(recovered)
		k.sayf("from a round's begin until a volume was written to again: median %s, longest %s",
			recovered[len(recovered)/2].Round(time.Second), recovered[len(recovered)-1].Round(time.Second))
	}
	if n := k.current; k.Failed() && n > 0 {
		k.sayf("repeat round %d: SOAK_SEED=%d SOAK_VOLUMES=%d SOAK_ROUNDS=%[1]d-%[1]d make soak; leave faults out with SOAK_WITHOUT=%[1]d.1,…",
			n, k.plan.Seed, k.plan.Volumes)
		k.sayf("its volumes may be on other hosts then than it has printed above: that comes of the rounds before it")
	}
}

func (k *soak) round(r soakplan.Round) {
	k.Helper()
	var faults []soakplan.Fault
	for i, f := range r.Faults {
		if !slices.Contains(k.without, fmt.Sprintf("%d.%d", r.Number, i+1)) {
			faults = append(faults, f)
		}
	}
	r.Faults = faults
	k.sayf("%s", r)
	for i, s := range k.volumes {
		k.sayf("  volume %d, %s, is on %s, and its second copy on %s", i+1, s.volume, s.holder.Name, s.partner().Name)
		s.fault()
	}
	k.breaks(r.Faults)
	for _, f := range r.Faults {
		if f.Forced {
			k.takenByForce(k.lab.Hosts[f.Host])
		}
	}
	check(k, k.mend(k.Context()))
	for _, s := range k.volumes {
		k.settle(s, r)
	}
	for _, s := range k.volumes {
		s.redundant()
		s.check.Verify(s, s.holder, s.device)
	}
	k.judge()
	for _, m := range r.Moves {
		s := k.volumes[m.Volume]
		s.writer.Stop(s)
		s.equalCopies()
		k.move(s, k.lab.Hosts[m.Host])
	}
}

// breaks begins and ends faults at their times.
func (k *soak) breaks(faults []soakplan.Fault) {
	k.Helper()
	type event struct {
		at  time.Duration
		say string
		do  func(context.Context) error
	}
	var events []event
	for _, f := range faults {
		k.faults[f.Kind]++
		begin, end := k.actions(f)
		events = append(events, event{f.At, "begins: " + f.String(), begin})
		if end != nil && f.For > 0 && !f.Forced { // mend ends the others
			events = append(events, event{f.At + f.For, "ends: " + f.String(), end})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	ctx, cancel := context.WithTimeout(k.Context(), bootTime)
	defer cancel()
	var running errgroup.Group // a host that boots keeps nothing else waiting
	start := time.Now()
	for _, e := range events {
		time.Sleep(time.Until(start.Add(e.at)))
		k.sayf("%s", e.say)
		running.Go(func() error {
			if err := e.do(ctx); err != nil {
				return fmt.Errorf("%s: %w", e.say, err)
			}
			return nil
		})
	}
	check(k, running.Wait())
}

// actions returns what begins a fault, and what ends it, or nil.
func (k *soak) actions(f soakplan.Fault) (begin, end func(context.Context) error) {
	host := k.lab.Hosts[f.Host]
	shell := func(script string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := host.Try(ctx, nil, "sh", "-c", script)
			return err
		}
	}
	cuts := func(what labclient.Cut) (begin, end func(context.Context) error) {
		c := cut{host.Name, what}
		return func(ctx context.Context) error {
				k.cutting.Lock()
				defer k.cutting.Unlock()
				k.cuts = append(k.cuts, c)
				return k.client.Cut(ctx, c.host, c.what)
			}, func(ctx context.Context) error {
				k.cutting.Lock()
				defer k.cutting.Unlock()
				k.cuts = slices.DeleteFunc(k.cuts, func(other cut) bool { return other == c })
				return k.healAllBut(ctx, k.cuts)
			}
	}
	switch peer := k.lab.Hosts[f.Peer].Name; f.Kind {
	case soakplan.PowerLoss:
		return on(k.client.PowerOff, host), on(k.client.PowerOn, host)
	case soakplan.Freeze:
		return on(k.client.Freeze, host), on(k.client.Thaw, host)
	case soakplan.DiskLoss:
		return func(ctx context.Context) error { return k.client.FailDisk(ctx, host.Name, false) },
			func(ctx context.Context) error { return k.client.FailDisk(ctx, host.Name, true) }
	case soakplan.CutLink:
		return cuts(labclient.Cut{From: peer})
	case soakplan.CutOneWay:
		return cuts(labclient.Cut{From: peer, OneWay: true})
	case soakplan.SlowLink:
		return cuts(labclient.Cut{From: peer, Slow: true})
	case soakplan.CutCeph:
		return cuts(labclient.Cut{From: labclient.CutCeph})
	case soakplan.CutAPI:
		return cuts(labclient.Cut{From: labclient.CutControlPlane})
	case soakplan.StallCeph:
		return k.client.StallCeph, k.client.ResumeCeph
	case soakplan.StopAPI:
		return k.client.StopAPIServer, k.client.StartAPIServer
	case soakplan.KillDriver:
		return func(context.Context) error {
			_, err := killControllers() // without API server none may run
			return err
		}, nil
	case soakplan.Kill: // it may just be starting again
		return shell("kill -9 $(cat " + serviceDir + f.Service + ".pid) || true"), nil
	case soakplan.Stop:
		return shell("kill -STOP $(cat " + serviceDir + f.Service + ".pid) || true"),
			shell("kill -CONT $(cat " + serviceDir + f.Service + ".pid) || true")
	case soakplan.Clock:
		const step = `date -s "@$(($(date +%%s) + %d))" >/dev/null`
		return shell(fmt.Sprintf(step, 3600)), shell(fmt.Sprintf(step, -3600))
	default:
		panic("unknown fault " + f.Kind)
	}
}

func on(do func(context.Context, string) error, h *labtest.Host) func(context.Context) error {
	return func(ctx context.Context) error { return do(ctx, h.Name) }
}

func (k *soak) healAllBut(ctx context.Context, stay []cut) error {
	err := k.client.Heal(ctx)
	for _, c := range stay {
		err = cmp.Or(err, k.client.Cut(ctx, c.host, c.what))
	}
	return err
}

// takenByForce has an operator say that a host is dead, if that helps a volume. Volumes are taken to the
// hosts of their second copies, where those are current on record: of the others only the dead host has
// everything, and they wait for it.
func (k *soak) takenByForce(dead *labtest.Host) {
	k.Helper()
	var taken []*scene
	for _, s := range k.volumes {
		if s.holder == dead && !s.record().Status.IsOutdated(s.partner().Name) {
			taken = append(taken, s)
		}
	}
	if len(taken) == 0 {
		return
	}
	for _, s := range k.volumes {
		if s.holder != dead {
			continue
		}
		heir := s.partner()
		s.loses()
		if !slices.Contains(taken, s) {
			k.sayf("%s waits for %s: its copy on %s is outdated", s.volume, dead.Name, heir.Name)
			k.waiting[s] = true
			continue
		}
		s.takes(heir)
		k.sayf("%s was taken from %s to %s", s.volume, dead.Name, heir.Name)
	}
}

// settle returns when a volume is written to again.
func (k *soak) settle(s *scene, r soakplan.Round) {
	k.Helper()
	if k.waiting[s] {
		delete(k.waiting, s)
		s.takes(s.holder)
		return
	}
	switch {
	case k.lost(s.holder, soakplan.PowerLoss, r):
		s.writer.Lost(s)
		s.leaves() // its pod has ended with the host
		s.takes(s.holder)
	case k.lost(s.holder, soakplan.DiskLoss, r): // a holder does not take its disk back while it is one
		s.goesOn()
		k.move(s, s.partner())
	default:
		s.goesOn()
	}
}

// lost reports whether a host was lost in this way in a round.
func (k *soak) lost(h *labtest.Host, kind soakplan.Kind, r soakplan.Round) bool {
	return slices.ContainsFunc(r.Faults, func(f soakplan.Fault) bool { return f.Kind == kind && k.lab.Hosts[f.Host] == h })
}

// move takes a volume to another host in good order. What Ceph has meanwhile is all.
func (k *soak) move(s *scene, to *labtest.Host) {
	k.Helper()
	k.sayf("%s moves from %s to %s", s.volume, s.holder.Name, to.Name)
	s.writer.Stop(s)
	s.leaves()
	s.inCeph()
	s.fault()
	s.takes(to)
	s.redundant()
	k.moves++
}

// Package soakplan draws what a soak run does from a seed: the same seed gives the same rounds, and a round
// does not depend on the rounds before it, so each can be repeated alone.
package soakplan

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of fault.
type Kind string

// Kinds of faults. The first three are lost hosts: at most one host is lost in a round, because a volume
// has two copies.
const (
	PowerLoss  Kind = "power loss"  // what was not flushed is gone; the host gets its power back
	Freeze     Kind = "freeze"      // the host stands still and then goes on
	DiskLoss   Kind = "disk loss"   // the disk of the caches fails; the same disk works again later
	CutLink    Kind = "cut"         // between two hosts
	CutOneWay  Kind = "one-way cut" // the host does not reach the other, and hears it
	SlowLink   Kind = "slow link"   // between two hosts
	CutCeph    Kind = "cut from Ceph"
	CutAPI     Kind = "cut from the control plane"
	StallCeph  Kind = "Ceph stalls"
	StopAPI    Kind = "API server away"
	KillDriver Kind = "csi-controller killed"
	Kill       Kind = "kill -9"
	Stop       Kind = "SIGSTOP"
	Clock      Kind = "clock an hour ahead"
)

var (
	lostHost   = []Kind{PowerLoss, Freeze, DiskLoss}
	ofLinks    = []Kind{CutLink, CutOneWay, SlowLink} // between two hosts
	ofPrograms = []Kind{Kill, Stop}                   // of a host
	ofAll      = []Kind{StallCeph, StopAPI, KillDriver}
)

// Services of a host that are killed and stopped.
var Services = []string{"escached", "csi-node", "kubelet", "containerd"}

// Fault is something that is broken for a while. Host and Peer are indexes of hosts.
type Fault struct {
	Kind    Kind
	Host    int
	Peer    int    // of cuts and slow links between hosts
	Service string // of Kill and Stop
	At      time.Duration
	For     time.Duration // 0: it has no end
	// Forced: an operator says that the lost host is dead, and its volumes are taken to others.
	Forced bool
}

func (f Fault) String() string {
	text := string(f.Kind)
	switch {
	case slices.Contains(ofLinks, f.Kind):
		text += fmt.Sprintf(" n%d-n%d", f.Host+1, f.Peer+1)
	case slices.Contains(ofPrograms, f.Kind):
		text += fmt.Sprintf(" %s on n%d", f.Service, f.Host+1)
	case !slices.Contains(ofAll, f.Kind):
		text += fmt.Sprintf(" n%d", f.Host+1)
	}
	text += fmt.Sprintf(", after %s", f.At)
	if f.For > 0 {
		text += fmt.Sprintf(" for %s", f.For)
	}
	if f.Forced {
		text += ", volumes taken by force"
	}
	return text
}

// Move takes a volume to a host in good order.
type Move struct{ Volume, Host int }

// Round is a set of faults that overlap, and what is done after them.
type Round struct {
	Number int
	Faults []Fault // in the order of their beginning
	Moves  []Move
}

func (r Round) String() string {
	lines := []string{fmt.Sprintf("round %d", r.Number)}
	for i, f := range r.Faults {
		lines = append(lines, fmt.Sprintf("  %d.%d %s", r.Number, i+1, f))
	}
	for _, m := range r.Moves {
		lines = append(lines, fmt.Sprintf("  then volume %d moves to n%d", m.Volume+1, m.Host+1))
	}
	return strings.Join(lines, "\n")
}

// Plan draws rounds. Hosts is at least 2.
type Plan struct {
	Seed           uint64
	Hosts, Volumes int
}

const (
	mostFaults = 3
	latest     = 30 * time.Second
	shortest   = 2 * time.Second
	longest    = 45 * time.Second
)

// Round returns the round with a number from 1.
func (p Plan) Round(number int) Round {
	draw := drawer{rand.New(rand.NewPCG(p.Seed, uint64(number))), p.Hosts}
	r := Round{Number: number}
	victim := -1
	for range 1 + draw.IntN(mostFaults) {
		f := draw.fault(victim)
		if slices.Contains(lostHost, f.Kind) {
			victim = f.Host
		}
		r.Faults = append(r.Faults, f)
	}
	r.Faults = possible(r.Faults)
	slices.SortStableFunc(r.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	for v := range p.Volumes {
		if draw.IntN(4) == 0 {
			r.Moves = append(r.Moves, Move{Volume: v, Host: draw.IntN(p.Hosts)})
		}
	}
	return r
}

type drawer struct {
	*rand.Rand

	hosts int
}

func (d drawer) between(from, to time.Duration) time.Duration {
	return (from + time.Duration(d.Int64N(int64(to-from)))).Round(100 * time.Millisecond)
}

// fault draws a fault. victim is the host that is lost in this round, or -1.
func (d drawer) fault(victim int) Fault {
	kinds := []Kind{CutLink, CutLink, CutOneWay, SlowLink, CutCeph, CutAPI, StallCeph, StopAPI, KillDriver, Kill, Kill, Stop, Stop, Clock}
	if victim < 0 {
		kinds = append(kinds, PowerLoss, PowerLoss, PowerLoss, Freeze, Freeze, DiskLoss)
	}
	f := Fault{
		Kind: kinds[d.IntN(len(kinds))], Host: d.IntN(d.hosts),
		At: d.between(0, latest), For: d.between(shortest, longest),
	}
	switch {
	case slices.Contains(ofLinks, f.Kind):
		f.Peer = (f.Host + 1 + d.IntN(d.hosts-1)) % d.hosts
	case slices.Contains(ofPrograms, f.Kind):
		f.Service = Services[d.IntN(len(Services))]
	case f.Kind == PowerLoss, f.Kind == Freeze:
		f.Forced = d.IntN(2) == 0
	}
	if f.Kind == Kill || f.Kind == KillDriver {
		f.For = 0
	}
	return f
}

// possible leaves out what cannot be done or has to fail: programs of a host that is off or frozen, and
// what takes the other copy from a volume whose disk has failed, which is an I/O error.
func possible(faults []Fault) []Fault {
	lost := map[Kind]int{PowerLoss: -1, Freeze: -1, DiskLoss: -1}
	for _, f := range faults {
		if slices.Contains(lostHost, f.Kind) {
			lost[f.Kind] = f.Host
		}
	}
	return slices.DeleteFunc(faults, func(f Fault) bool {
		if slices.Contains(ofLinks, f.Kind) {
			return lost[DiskLoss] >= 0
		}
		inside := f.Kind == Clock || slices.Contains(ofPrograms, f.Kind)
		return inside && (f.Host == lost[PowerLoss] || f.Host == lost[Freeze])
	})
}

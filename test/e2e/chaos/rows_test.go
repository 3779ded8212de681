//go:build e2e

package chaos

import (
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// fault is what fails, and what has to come of it.
type fault struct {
	what string
	hit  func(*scene)
	// taken: the second host takes the volume over. Else the holder goes on by itself, if need be
	// after mend.
	taken bool
	// pauses: the holder goes on only after mend.
	pauses bool
	mend   func(*scene)
}

var (
	powerOfPrimary = fault{what: "power of the primary", taken: true, hit: func(s *scene) {
		s.v.WaitForPeer(s, s.holder)
		s.powerOff(s.holder)
	}}
	powerOfSecond  = fault{what: "power of the secondary", hit: func(s *scene) { s.powerOff(s.n2) }}
	killed         = fault{what: "escached of the primary killed", hit: func(s *scene) { s.holder.KillService(s) }}
	killedSecond   = fault{what: "escached of the secondary killed", hit: func(s *scene) { s.n2.KillService(s) }}
	linkCut        = fault{what: "replication link cut", hit: func(s *scene) { s.lab.CutFrom(s, s.n1, s.n2) }}
	primaryUnheard = fault{what: "replication link cut, primary is not heard", hit: func(s *scene) {
		s.lab.CutSome(s, s.n1, labclient.Cut{From: s.n2.Name, OneWay: true})
	}}
	secondUnheard = fault{what: "replication link cut, secondary is not heard", hit: func(s *scene) {
		s.lab.CutSome(s, s.n2, labclient.Cut{From: s.n1.Name, OneWay: true})
	}}
	linkSlow = fault{what: "replication link slow", hit: func(s *scene) {
		s.lab.CutSome(s, s.n1, labclient.Cut{From: s.n2.Name, Slow: true})
	}}
	cutFromCeph = fault{what: "primary cut off from Ceph", hit: func(s *scene) {
		s.lab.CutSome(s, s.n1, labclient.Cut{From: labclient.CutCeph})
	}}
	cutFromControl = fault{what: "primary cut off from the control plane", hit: func(s *scene) {
		s.lab.CutSome(s, s.n1, labclient.Cut{From: labclient.CutControlPlane})
	}}
	cutFromAll = fault{what: "primary cut off from everything, taken over", taken: true, hit: func(s *scene) {
		s.v.WaitForPeer(s, s.holder)
		s.lab.Cut(s, s.n1)
	}, mend: func(s *scene) {
		// It is fenced, and frozen, until it reboots; healed first, so that it could write if it
		// were allowed to.
		s.lab.Heal(s)
		s.writer.WaitForMore(s, 50, goOnLimit)
		s.powerOff(s.n1)
	}}
	cutAndBack = fault{what: "primary cut off from everything, and back", pauses: true, hit: func(s *scene) {
		s.lab.Cut(s, s.n1)
		s.v.WaitForStatus(s, s.n1, "is frozen", noticeLimit, func(st escache.VolumeStatus) bool { return st.IOSuspended })
	}, mend: func(s *scene) { s.lab.Heal(s) }}
	cephStalled = fault{what: "Ceph stalled", hit: func(s *scene) { s.lab.StallCeph(s) }}
	cephPaused  = fault{what: "Ceph refuses to work (paused)", hit: func(s *scene) {
		s.Cleanup(func() { s.lab.Command(s, "ceph", "osd", "unset", "pause") })
		s.lab.Command(s, "ceph", "osd", "set", "pause")
	}, mend: func(s *scene) { s.lab.Command(s, "ceph", "osd", "unset", "pause") }}
	diskDead   = fault{what: "local disk of the primary dead", hit: func(s *scene) { s.lab.FailDisk(s, s.n1) }}
	clockAhead = fault{what: "clock of the primary an hour ahead", hit: func(s *scene) {
		s.n1.Shell(s, `date -s "@$(($(date +%s) + 3600))" >/dev/null`)
	}, mend: func(s *scene) { s.n1.Shell(s, `date -s "@$(($(date +%s) - 3600))" >/dev/null`) }}
	clockBack = fault{what: "clock of the secondary an hour back", hit: func(s *scene) {
		s.n2.Shell(s, `date -s "@$(($(date +%s) - 3600))" >/dev/null`)
	}, mend: func(s *scene) { s.n2.Shell(s, `date -s "@$(($(date +%s) + 3600))" >/dev/null`) }}
)

// lasts is how long a fault stays that hits in the middle of a call.
const lasts = 3 * time.Second

// outcome is what has to come of a fault while the volume is in use; mended it is whole again.
func (f fault) outcome(s *scene) {
	s.Helper()
	switch {
	case f.taken:
		s.takenOver(s.n2)
	case !f.pauses:
		s.goesOn()
	}
	if f.mend != nil {
		f.mend(s)
	}
	if f.pauses {
		s.goesOn()
	}
}

func idle(f fault) func(*scene) {
	return func(s *scene) {
		s.write()
		s.rest()
		f.hit(s)
		f.outcome(s)
		s.whole()
		s.finish()
	}
}

func load(f fault) func(*scene) {
	return func(s *scene) {
		s.write()
		f.hit(s)
		f.outcome(s)
		s.whole()
		s.finish()
	}
}

func flush(f fault) func(*scene) {
	return func(s *scene) {
		s.write()
		s.check.Add(s.n1.Fill(s, s.device, 8*mib, 8*mib))
		wait := s.flushing()
		f.hit(s)
		f.outcome(s)
		s.lab.ResumeCeph(s)
		s.lab.Heal(s)
		wait()
		s.whole()
		s.finish()
	}
}

// stage hits while the volume is being connected, clean as it is after every orderly unstage; then
// it is connected once more.
func stage(f fault) func(*scene) {
	return func(s *scene) {
		s.write()
		s.rest()
		s.v.Flush(s, s.n1)
		s.v.Stop(s, s.n1)
		wait := s.connecting(s.n1)
		f.hit(s)
		time.Sleep(lasts)
		s.lab.ResumeCeph(s)
		s.lab.Heal(s)
		s.powerOn()
		wait()
		s.connect(s.n1)
		s.check.Verify(s, s.n1, s.device)
		s.write()
		s.whole()
		s.finish()
	}
}

// takeOver hits while the second host takes the volume over from one that has lost its power.
func takeOver(hit func(*scene)) func(*scene) {
	return func(s *scene) {
		s.write()
		powerOfPrimary.hit(s)
		s.lab.Blocklist(s, s.client)
		wait := s.connecting(s.n2)
		hit(s)
		wait()
		s.connect(s.n2)
		s.check.TakenOver(s, s.n2, s.device)
		s.write()
		s.whole()
		s.finish()
	}
}

func resync(f fault) func(*scene) {
	return func(s *scene) {
		s.write()
		s.resyncing()
		f.hit(s)
		var peers []escache.Peer
		s.v.WaitForStatus(s, s.n1, "answers", noticeLimit, func(st escache.VolumeStatus) bool { peers = st.Peers; return true })
		if slices.ContainsFunc(peers, func(p escache.Peer) bool { return p.DiskState == escache.DiskUpToDate }) {
			s.Errorf("the resync was not under way any more: the peers are %+v", peers)
		}
		if f.what != linkCut.what {
			s.lab.Heal(s) // on a slow link a write waits until what the resync has sent has arrived
		}
		s.goesOn()
		s.whole()
		s.finish()
	}
}

func twice(f fault) func(*scene) {
	return func(s *scene) {
		s.write()
		for range 2 {
			f.hit(s)
			f.outcome(s)
			s.whole()
		}
		s.finish()
	}
}

// rows of the matrix.
func rows() []row {
	var all []row
	add := func(when string, run func(fault) func(*scene), faults ...fault) {
		for _, f := range faults {
			all = append(all, row{when: when, what: f.what, run: run(f)})
		}
	}
	add("idle", idle, powerOfPrimary, powerOfSecond)
	add("load", load, powerOfPrimary, powerOfSecond, killed, killedSecond, linkCut, linkSlow, primaryUnheard, secondUnheard, cutFromCeph,
		cutFromControl, cutFromAll, cutAndBack, cephStalled, cephPaused, clockAhead, clockBack)
	add("flush", flush, powerOfPrimary, powerOfSecond, killed, linkCut, cutFromCeph, cephStalled)
	add("stage", stage, powerOfSecond, killed, linkCut, cephStalled, cutFromControl)
	add("resync", resync, powerOfSecond, killed, killedSecond, linkCut, cephStalled)
	add("twice", twice, powerOfSecond, killed, linkCut, cutAndBack, cephStalled)
	all = append(all, special()...)
	for i, r := range all {
		switch r.name() {
		case "load/power of the primary", "load/replication link cut", "flush/Ceph stalled":
			all[i].core = true
		}
	}
	return all
}

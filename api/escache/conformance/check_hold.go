package conformance

import (
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func holdChecks() []Check {
	return []Check{
		{"hold suspends I/O with a clean cache until release", holdAndRelease, beside},
		{"a second hold has what was written during the first", holdAgain, beside},
		{"a hold with a pause keeps writers waiting with every engine", holdPauses, beside},
		{"a watchdog releases a hold", watchdogReleases, beside},
	}
}

// holdPauses demands a pause also of a volume that is held while its I/O goes on.
func holdPauses(s *suite) {
	v := s.connected()
	load := v.startLoad(s.first)
	load.proceeds(1)
	asked := time.Now()
	var goesOn, held, again escache.HoldResponse
	decode(s, s.first.hold(v, 300), &goesOn)
	if s.target.Engine == escache.EngineLog && goesOn.Paused {
		s.Errorf("I/O goes on, and it says that I/O rests: %+v", goesOn)
	}
	decode(s, s.first.pause(v, 300), &held)
	if !held.Paused {
		s.Errorf("asked for a pause, it does not say that I/O rests: %+v", held)
	}
	load.standsStill(s.target.CallTimeout/60, asked.Add(300*time.Second))
	status := s.first.status(v.VolumeRef)
	if status.DirtyBytes == nil || *status.DirtyBytes != 0 || status.HeldUntil == nil || !status.HeldUntil.Equal(held.HeldUntil) {
		s.Errorf("I/O rests until %s: the status is %+v", held.HeldUntil, shown(status))
	}
	decode(s, s.first.hold(v, 1), &again) // asks for less, and ends nothing
	if again.HeldUntil.Before(held.HeldUntil) {
		s.Errorf("a second hold ends at %s, before the pause at %s", again.HeldUntil, held.HeldUntil)
	}
	load.standsStill(2*time.Second, asked.Add(300*time.Second))
	done(s, "release", s.first.release(v))
	load.proceeds(2)
	decode(s, s.first.pause(v, 15), &again) // enough for a busy machine to bring the image up to date
	load.proceeds(2)                        // the watchdog ends a pause, too
	load.stop()
	done(s, "release what the watchdog released", s.first.release(v))
	v.detach(s.first)
}

func holdAndRelease(s *suite) {
	unknown := s.nameVolume()
	refused(s, "hold an unknown volume", s.first.hold(unknown, 1), escache.CodeNotFound)
	refused(s, "release an unknown volume", s.first.release(unknown), escache.CodeNotFound)
	v := s.laid()
	refused(s, "hold a standby", s.first.hold(v, 1), escache.CodeNotConnected)
	done(s, "release a standby", s.first.release(v))
	v.attach(s.first)
	done(s, "release what is not held", s.first.release(v))
	data := v.makeDirty(s.first)
	load := v.startLoad(s.first)
	load.proceeds(1)

	asked := time.Now()
	var held escache.HoldResponse
	decode(s, s.first.hold(v, 300), &held)
	load.stands(s.target.CallTimeout/60, asked.Add(300*time.Second))
	s.heldClean(v, held)
	refused(s, "stop while held and written to", s.first.stop(v), escache.CodeHeld, escache.CodeDeviceOpen)
	refused(s, "mode while held", s.first.mode(v, escache.ModeWritethrough), escache.CodeHeld)
	refused(s, "resize while held", s.first.resize(v, s.target.ImageBytes), escache.CodeHeld)
	refused(s, "flush while held", s.first.flush(v, 10), escache.CodeHeld)
	refused(s, "delete while held", s.first.discard(v), escache.CodeConnected)
	if s.target.Engine != escache.EngineLog {
		s.extends(v, held)
		load.stands(2*time.Second, asked.Add(300*time.Second)) // the shorter second hold would have run out
	}

	done(s, "release", s.first.release(v))
	load.proceeds(2)
	load.stop()
	done(s, "release again", s.first.release(v))
	if until := s.first.status(v.VolumeRef).HeldUntil; until != nil {
		s.Errorf("a released volume is held until %s", until)
	}
	v.holds(s.first, 0, data)

	decode(s, s.first.hold(v, 300), &held)
	refused(s, "stop while held", s.first.stopClosed(v), escache.CodeHeld)
	s.heldClean(v, held)
	done(s, "release an idle volume", s.first.release(v))
	v.detach(s.first)
}

// extends demands that a second, shorter hold does not cut the first short.
func (s *suite) extends(v *volume, held escache.HoldResponse) {
	s.Helper()
	var again escache.HoldResponse
	decode(s, s.first.hold(v, 1), &again)
	if again.HeldUntil.Before(held.HeldUntil) {
		s.Errorf("a second hold ends at %s, before the first at %s", again.HeldUntil, held.HeldUntil)
	}
	s.heldClean(v, again)
}

func holdAgain(s *suite) {
	if s.target.Engine != escache.EngineLog {
		s.Skipf("with this engine I/O rests during a hold, and a second one can lack nothing")
	}
	v := s.connected()
	var first, second escache.HoldResponse
	decode(s, s.first.hold(v, 300), &first)
	data := v.makeDirty(s.first)
	decode(s, s.first.hold(v, 60), &second)
	status := s.first.status(v.VolumeRef)
	if status.DirtyBytes == nil || *status.DirtyBytes != 0 || status.HeldUntil == nil || !status.HeldUntil.Equal(second.HeldUntil) {
		s.Errorf("nobody writes, and it is held again until %s: the status is %+v", second.HeldUntil, shown(status))
	}
	if second.HeldUntil.Equal(first.HeldUntil) {
		s.Errorf("who began the first hold cannot see that it is over: both end at %s", first.HeldUntil)
	}
	v.holds(s.first, 0, data)
	done(s, "release", s.first.release(v))
	v.detach(s.first)
}

// heldClean demands that the volume is held, and clean unless its writers go on.
func (s *suite) heldClean(v *volume, held escache.HoldResponse) {
	s.Helper()
	status := s.first.status(v.VolumeRef)
	clean := status.DirtyBytes != nil && (*status.DirtyBytes == 0 || s.target.Engine == escache.EngineLog)
	if status.HeldUntil == nil || !status.HeldUntil.Equal(held.HeldUntil) || !clean {
		s.Errorf("held until %s: the status is %+v", held.HeldUntil, shown(status))
	}
}

func watchdogReleases(s *suite) {
	v := s.connected()
	load := v.startLoad(s.first)
	load.proceeds(1)
	const seconds = 4
	start := time.Now()
	var held escache.HoldResponse
	decode(s, s.first.hold(v, seconds), &held)
	answered := time.Now() // the write-back before it is no part of the hold
	if before := time.Since(start); before < seconds*time.Second/2 {
		load.stands(seconds*time.Second/4, start.Add(seconds*time.Second))
	}
	load.proceeds(2)
	s.eventually("the hold is over", func() (bool, any) {
		status := s.first.status(v.VolumeRef)
		return status.HeldUntil == nil, shown(status)
	})
	if took := time.Since(answered); took > seconds*time.Second+30*time.Second {
		s.Errorf("a hold of %d s lasted %s", seconds, took)
	}
	load.stop()
	done(s, "release what the watchdog released", s.first.release(v))
	v.detach(s.first)
}

package conformance

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func flushChecks() []Check {
	return []Check{
		{"flush makes the cache clean", flushCleans, beside},
		{"flush says what is left when its time is up", flushTimesOut, alone},
		{"a second call on a busy volume is told what runs", busyNamesOperation, alone},
	}
}

func flushCleans(s *suite) {
	refused(s, "flush an unknown volume", s.first.flush(s.nameVolume(), 10), escache.CodeNotFound)
	v := s.laid()
	refused(s, "flush a standby", s.first.flush(v, 10), escache.CodeNotConnected)
	v.attach(s.first)
	v.clean(s.first)
	data := v.makeDirty(s.first)
	for range 2 { // the second time there is nothing to do
		v.clean(s.first)
		if dirty := v.dirty(s.first); dirty != 0 {
			s.Errorf("%d bytes are dirty after a flush that answered clean", dirty)
		}
	}
	v.holds(s.first, 0, data)
}

// stall makes Ceph hang, or skips the check. It is undone at the latest when the check ends.
func (s *suite) stall() (resume func()) {
	s.Helper()
	stalled, err := s.target.Storage.Stall(s.Context())
	if errors.Is(err, ErrUnsupported) {
		s.Skipf("the target cannot make Ceph hang")
	}
	if err != nil {
		s.Fatalf("stall Ceph: %v", err)
	}
	over := false
	resume = func() {
		if over {
			return
		}
		over = true
		if err := stalled.Close(); err != nil {
			s.Errorf("resume Ceph: %v", err)
		}
	}
	s.Cleanup(resume)
	return resume
}

// statusWhileStuck demands that status and node answer while a flush hangs, and returns the status.
func (s *suite) statusWhileStuck(v *volume) escache.VolumeStatus {
	s.Helper()
	start := time.Now()
	status := s.first.status(v.VolumeRef)
	s.first.node()
	if took := time.Since(start); took > time.Minute {
		s.Errorf("status and node took %s while a flush was running", took)
	}
	return status
}

func flushTimesOut(s *suite) {
	v := s.connected()
	data := v.makeDirty(s.first)
	resume := s.stall()
	seconds := max(2, int(s.target.CallTimeout/time.Second)/24) // time for a slow host to look at the device
	start := time.Now()
	var flushed escache.FlushResponse
	decode(s, s.first.flush(v, seconds), &flushed)
	if took := time.Since(start); took > time.Duration(seconds)*time.Second+time.Minute {
		s.Errorf("a flush that was given %d s took %s", seconds, took)
	}
	if flushed.Clean || flushed.DirtyBytes <= 0 {
		s.Errorf("a flush that could not write answered %+v", flushed)
	}
	if dirty := s.statusWhileStuck(v).DirtyBytes; dirty != nil && *dirty == 0 {
		s.Errorf("nothing is dirty after a flush that could not write")
	}
	resume()
	s.cleanEventually(v)
	v.holds(s.first, 0, data)
}

// cleanEventually flushes until it succeeds: what an earlier flush began may still be running.
func (s *suite) cleanEventually(v *volume) {
	s.Helper()
	s.eventually("flush "+v.String()+" once Ceph goes on", func() (bool, any) {
		a := s.first.flush(v, s.seconds())
		if a.code() == escache.CodeBusy || a.code() == escache.CodeStuck {
			return false, a
		}
		var flushed escache.FlushResponse
		decode(s, a, &flushed)
		return flushed.Clean && flushed.DirtyBytes == 0, a
	})
}

// age is how long something has been running, as a person reads it.
var age = regexp.MustCompile(`\b\d+(\.\d+)?\s?(ms|s|m|seconds?|minutes?)\b`)

func busyNamesOperation(s *suite) {
	v, other := s.connected(), s.laid()
	v.makeDirty(s.first)
	resume := s.stall()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	flushed := make(chan *answer, 1)
	body := encode(s, escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: s.seconds()}) // it outlasts the calls below on any host
	go func() {
		a, _ := s.first.call.do(ctx, request{method: http.MethodPost, path: escache.PathFlush, body: body})
		flushed <- a
	}()
	s.eventually("the state of a volume under flush", func() (bool, any) {
		status := s.statusWhileStuck(v)
		return status.State == escache.StateFlushing, shown(status)
	})
	for what, call := range map[string]func() *answer{
		"flush":       func() *answer { return s.first.flush(v, 10) },
		"stop":        func() *answer { return s.first.stop(v) },
		"mode":        func() *answer { return s.first.mode(v, escache.ModeWritethrough) },
		"hold":        func() *answer { return s.first.hold(v, 1) },
		"resize":      func() *answer { return s.first.resize(v, s.target.ImageBytes) },
		"dev_connect": func() *answer { return s.first.connect(v, v.epoch, v.id) },
		"put replica": func() *answer { return s.first.put(v.request()) },
	} {
		start := time.Now()
		a := call()
		refused(s, what+" while a flush runs", a, escache.CodeBusy)
		if a.problem != nil && (!strings.Contains(a.problem.Detail, "flush") || !age.MatchString(a.problem.Detail)) {
			s.Errorf("%s while a flush runs: %q does not name the operation and its age", what, a.problem.Detail)
		}
		if took := time.Since(start); took > 15*time.Second {
			s.Errorf("%s waited %s for the running flush", what, took)
		}
	}
	done(s, "a call on another volume", s.first.put(other.request()))
	select {
	case a := <-flushed:
		s.Fatalf("the flush ended too early to tell: %v", a)
	default:
	}
	resume()
	select {
	case a := <-flushed:
		if a == nil {
			s.Fatalf("the flush got no answer")
		}
		var left escache.FlushResponse
		decode(s, a, &left)
	case <-time.After(s.target.CallTimeout):
		s.Fatalf("a flush that was given %d s has not answered %s after Ceph went on", s.seconds(), s.target.CallTimeout)
	}
}

package conformance

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// load writes to a device again and again until it is ended.
type load struct {
	v      *volume
	writes atomic.Int64
	ending atomic.Bool
	end    chan error
}

// loadSpan is where a load writes, in steps of loadBytes; checks keep their own data elsewhere.
const (
	loadStart = 64 * mib
	loadSpan  = 8 * mib
	loadBytes = 256 << 10
)

// startLoad begins to write.
func (v *volume) startLoad(h *host) *load {
	ctx, cancel := context.WithCancel(v.s.Context())
	l := &load{v: v, end: make(chan error, 1)}
	v.s.Cleanup(cancel)
	data := pattern(int64(v.minor), loadBytes)
	go func() {
		for offset := int64(0); ctx.Err() == nil && !l.ending.Load(); offset = (offset + loadBytes) % loadSpan {
			one, done := context.WithTimeout(ctx, v.s.target.CallTimeout)
			err := h.Devices.Write(one, v.device, loadStart+offset, data)
			done()
			if err != nil && ctx.Err() == nil {
				l.end <- err
				return
			}
			l.writes.Add(1)
		}
		l.end <- nil
	}()
	return l
}

// proceeds waits until so many more writes are done.
func (l *load) proceeds(writes int64) {
	l.v.s.Helper()
	want := l.writes.Load() + writes
	l.v.s.eventually("writes to "+l.v.device+" go on", func() (bool, any) {
		select {
		case err := <-l.end:
			l.v.s.Fatalf("a write to %s failed: %v", l.v.device, err)
		default:
		}
		return l.writes.Load() >= want, l.writes.Load()
	})
}

// stands demands that a hold keeps writers waiting, or lets them go on if the engine's cache takes their
// writes meanwhile.
func (l *load) stands(d time.Duration, until time.Time) {
	l.v.s.Helper()
	if l.v.s.target.Engine == escache.EngineLog {
		l.proceeds(1)
		return
	}
	l.standsStill(d, until)
}

// standsStill demands that no write gets through for a time. One that was under way when it began may, and may be heard of
// later. It says nothing if the hold, which ends at until, was over before it could look: this machine was slower than the
// hold is long.
func (l *load) standsStill(d time.Duration, until time.Time) {
	l.v.s.Helper()
	const underWay = 1
	before := l.writes.Load()
	time.Sleep(d + d/4)
	n := l.writes.Load() - before
	if n > underWay && time.Now().Before(until) {
		l.v.s.Errorf("%d writes to %s were acknowledged while it was held", n, l.v.device)
	}
}

// stop ends the load after the write that is under way, so that nobody has the device open then.
func (l *load) stop() {
	l.v.s.Helper()
	l.ending.Store(true)
	select {
	case err := <-l.end:
		if err != nil {
			l.v.s.Errorf("a write to %s failed: %v", l.v.device, err)
		}
	case <-time.After(l.v.s.target.CallTimeout):
		l.v.s.Fatalf("a write to %s does not end", l.v.device)
	}
}

package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// unreadInTime is a copy that takes longer to be read than anybody waits.
func unreadInTime(context.Context) error {
	return fmt.Errorf("%w: %w", cache.ErrUnchecked, &command.TimeoutError{Command: "read the log"})
}

// TestACopyThatIsNotCheckedDoesNotComeUp: it may be damaged, and DRBD would take it for the newest one.
func TestACopyThatIsNotCheckedDoesNotComeUp(t *testing.T) {
	for what, check := range map[string]func(context.Context) error{
		"it takes too long":  unreadInTime,
		"the caller's time":  func(context.Context) error { return context.DeadlineExceeded },
		"the disk hangs":     func(context.Context) error { return &command.StuckError{} },
		"a block takes long": func(context.Context) error { return &command.TimeoutError{} },
	} {
		w := booted(t)
		w.record.Outdated = nil
		w.caches.Checking = check
		before := len(w.steps)
		e := w.restarted()
		if slices.Contains(w.steps[before:], "attach") {
			t.Fatalf("%s: it came up: %q", what, w.steps[before:])
		}
		if s := statusOf(e, t); s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeRecovering ||
			!strings.Contains(s.Error.Detail, "not known yet") {
			t.Errorf("%s: status %+v, error %+v", what, s, s.Error)
		}
		if _, err := connectWith(e, 3); code(err) != escache.CodeRecovering && code(err) != escache.CodeStuck {
			t.Errorf("%s: connected: %v", what, err)
		}
		v, _ := e.Volumes.Get(volume.NameOf(ref))
		if e.watcher.Reconnect(t.Context(), v); slices.Contains(w.steps[before:], "attach") {
			t.Errorf("%s: it came up: %q", what, w.steps[before:])
		}
		w.caches.Checking = func(context.Context) error { return nil }
		if e.watcher.Reconnect(t.Context(), v); !slices.Contains(w.steps[before:], "attach") {
			t.Errorf("%s: it stays down: %q", what, w.steps[before:])
		}
		if s := statusOf(e, t); s.State != escache.StateStandby || s.Error != nil {
			t.Errorf("%s: up, status %+v, error %+v", what, s, s.Error)
		}
	}
}

// TestACopyThatIsNotCheckedIsNotPromoted: that would put the good copy on record as outdated.
func TestACopyThatIsNotCheckedIsNotPromoted(t *testing.T) {
	w, e := damaged(t)
	w.setDirty(4096) // it is in order
	w.caches.Checking = unreadInTime
	before := len(w.steps)
	if _, err := connectWith(e, 2); code(err) != escache.CodeRecovering {
		t.Fatalf("got %v", err)
	}
	changed := func(step string) bool { return strings.HasPrefix(step, "promote") || step == "retag" }
	if slices.ContainsFunc(w.steps[before:], changed) {
		t.Errorf("steps %q", w.steps[before:])
	}
	w.caches.Checking = func(context.Context) error { return nil }
	if _, err := connectWith(e, 2); err != nil {
		t.Error(err)
	}
}

// TestADamageStaysKnownIfTheNextLookTakesTooLong: otherwise the loss could not be accepted.
func TestADamageStaysKnownIfTheNextLookTakesTooLong(t *testing.T) {
	w, e := damaged(t)
	if _, err := connectWith(e, 2); code(err) != escache.CodeCacheCorrupt {
		t.Fatalf("got %v", err)
	}
	w.caches.Checking = unreadInTime
	if _, err := connectWith(e, 2); code(err) != escache.CodeRecovering {
		t.Errorf("got %v", err)
	}
	if s := statusOf(e, t); s.Error == nil || s.Error.Code != escache.CodeCacheCorrupt {
		t.Errorf("status %+v, error %+v", s, s.Error)
	}
}

// TestALongCopyHasTimeToBeRead before DRBD runs it, and before it is promoted.
func TestALongCopyHasTimeToBeRead(t *testing.T) {
	w := booted(t)
	w.record.Outdated = nil
	w.caches.Reads = 5 * time.Hour
	w.caches.Checking = func(context.Context) error { return context.DeadlineExceeded }
	e := w.restarted()
	had := []time.Duration{}
	w.caches.Checking = func(ctx context.Context) error {
		until, _ := ctx.Deadline()
		had = append(had, time.Until(until))
		return nil
	}
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	e.watcher.Reconnect(t.Context(), v)
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	if _, err := connectWith(e, 3); err != nil {
		t.Fatal(err)
	}
	if len(had) < 2 || slices.Min(had) < w.caches.Reads {
		t.Errorf("it had %v", had)
	}
}

// TestALongRecoveryIsNotUndone: the next attempt would begin at zero, and so for ever.
func TestALongRecoveryIsNotUndone(t *testing.T) {
	w := withLog(t)
	e := w.engine()
	if err := putLog(e, t); err != nil {
		t.Fatal(err)
	}
	w.log.RecoversLong = true
	for range 2 {
		if err := connectLog(e, t, 3); code(err) != escache.CodeRecovering {
			t.Fatalf("got %v", err)
		}
	}
	if s := statusOf(e, t); s.Error == nil || s.DirtyBytes != nil {
		t.Errorf("status %+v, error %+v", s, s.Error)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); code(err) != escache.CodeDirtyUnknown {
		t.Errorf("stop: %v", err)
	}
	e = w.restarted()
	w.log.RecoversLong = false
	if err := connectLog(e, t, 3); err != nil {
		t.Fatal(err)
	}
	if s := statusOf(e, t); s.State != escache.StateConnected || s.Error != nil {
		t.Errorf("status %+v, error %+v", s, s.Error)
	}
	count := func(begin string) (n int) {
		for _, step := range w.steps {
			if strings.HasPrefix(step, begin) {
				n++
			}
		}
		return n
	}
	if count("assemble") != 1 || count("promote") != 1 || count("demote") != 0 || count("unmap") != 0 {
		t.Errorf("steps %q", w.steps)
	}
}

// TestALossThatALongRecoveryFindsIsTold, and nothing stays of the attempt.
func TestALossThatALongRecoveryFindsIsTold(t *testing.T) {
	w := withLog(t)
	e := w.engine()
	if err := putLog(e, t); err != nil {
		t.Fatal(err)
	}
	w.log.RecoversLong = true
	if err := connectLog(e, t, 3); code(err) != escache.CodeRecovering {
		t.Fatalf("got %v", err)
	}
	w.log.RecoversLong = false
	w.log.Step = func(what string) error {
		if strings.HasPrefix(what, "revive") {
			return cache.ErrCorrupt
		}
		return w.cacheStep(what)
	}
	if err := connectLog(e, t, 3); code(err) != escache.CodeCacheCorrupt {
		t.Errorf("got %v", err)
	}
	if s := statusOf(e, t); s.State != escache.StateError || s.Error == nil || s.Error.Code != escache.CodeCacheCorrupt {
		t.Errorf("status %+v, error %+v", s, s.Error)
	}
	if len(w.log.Assembled()) != 0 || len(w.maps) != 0 || w.minors[100].Role == drbd.Primary {
		t.Errorf("left: %v, %v, %+v", w.log.Assembled(), w.maps, w.minors[100])
	}
}

// linkedStandby has a current replica whose peer is current, too.
func linkedStandby(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	return w, e
}

// TestALongCopyIsRemovedByWhatItsScanHasFound, if nothing was written to it since.
func TestALongCopyIsRemovedByWhatItsScanHasFound(t *testing.T) {
	for what, c := range map[string]struct {
		after func(w *world, e *Engine)
		want  escache.Code
	}{
		"scanned":       {func(*world, *Engine) {}, ""},
		"written since": {func(w *world, _ *Engine) { w.write() }, escache.CodeDirtyUnknown},
		"not scanned":   {func(_ *world, e *Engine) { e.standbys.Drop(volume.NameOf(ref)) }, escache.CodeDirtyUnknown},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, e := linkedStandby(t)
			w.setDirty(0)
			e.standbys.ScanAll(t.Context())
			c.after(w, e)
			w.caches.Counting = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			if err := e.DeleteReplica(t.Context(), ref, nil); (err == nil) != (c.want == "") || err != nil && code(err) != c.want {
				t.Errorf("%s: %v", what, err)
			}
		})
	}
}

// write is a write to the disk that DRBD has counted.
func (w *world) write() {
	st := w.minors[100]
	st.DiskWrittenKiB += 4
	w.minors[100] = st
}

// TestAScanHasTheTimeThatItTakes: a standby with a long log would never be known to be clean.
func TestAScanHasTheTimeThatItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := linkedStandby(t)
		w.setDirty(4096)
		w.caches.Reads = 5 * time.Hour
		w.caches.Counting = func(ctx context.Context) error { return pause.For(ctx, w.caches.Reads) }
		e.standbys.ScanAll(t.Context())
		if found := e.standbys.Known(volume.NameOf(ref), w.minors[100]); found == nil || *found != 4096 {
			t.Errorf("it has found %v", found)
		}
	})
}

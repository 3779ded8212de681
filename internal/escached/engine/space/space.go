// Package space keeps the size and free space of the caches' volume group, so that polls do not run
// LVM.
package space

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/pause"
)

// Store reads the size of the volume group from LVM.
type Store interface {
	Space(ctx context.Context) (lvm.Space, error)
}

// Space keeps the size of the volume group in memory: LVM takes seconds to start on a busy host,
// and callers poll. It is read at the start and once a minute, because others may use the group too. What
// escached itself allocates and frees is counted as LVM does it, in whole extents.
type Space struct {
	store Store
	now   func() time.Time
	// refreshing is locked during a reading. last may be loaded at any time.
	refreshing sync.Mutex
	last       atomic.Pointer[reading]
	failed     atomic.Pointer[error]

	// mu is held while last changes, and protects begun and running.
	mu sync.Mutex
	// begun counts the readings that have begun, and running is true during one.
	begun   int
	running bool
}

type reading struct {
	begun time.Time
	space lvm.Space
}

const (
	// rereadEvery is how often the group is read although no verb changed it.
	rereadEvery = time.Minute
	// TooOld is the age from which a reading is reported as an error: a host that could not
	// read its group for so long is in trouble, not only busy.
	TooOld = 5 * time.Minute
)

// New returns a Space that has read nothing yet.
func New(store Store, now func() time.Time) *Space { return &Space{store: store, now: now} }

// Refresh returns after a reading that began no earlier than the call. Another caller may have done
// the reading.
func (s *Space) Refresh(ctx context.Context) error {
	asked := s.now()
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	if last := s.last.Load(); last != nil && last.begun.After(asked) {
		return nil
	}
	begun := s.begin()
	read, err := s.store.Space(ctx)
	s.end(begun, read, err)
	return err
}

func (s *Space) begin() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun++
	s.running = true
	return s.now()
}

func (s *Space) end(begun time.Time, read lvm.Space, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	if err != nil {
		s.failed.Store(&err)
		return
	}
	s.failed.Store(nil)
	s.last.Store(&reading{begun: begun, space: read})
}

// Change is a change of the group that a verb makes.
type Change struct {
	s *Space
	// readings is how many readings had begun before the change. overlaps means that one was running.
	readings int
	overlaps bool
}

// Change begins a change. Call it before LVM changes the group, and Done after that.
func (s *Space) Change() Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Change{s: s, readings: s.begun, overlaps: s.running}
}

// Done counts what LVM has allocated in the group since the change began, or freed if bytes is negative.
// It must be called once LVM has done that, and only then. A reading that ran at the same time may include
// the change or not, so the group is then read again. If it cannot be read now, Done counts what was
// allocated, maybe twice, and not what was freed: there is never less space than it says.
func (c Change) Done(ctx context.Context, bytes int64) {
	if c.count(bytes, false) || c.s.Refresh(ctx) == nil {
		return
	}
	c.count(max(0, bytes), true)
}

// count corrects the last reading by the change, and reports whether it did. It does nothing if a reading may
// include the change already, or if the result is impossible. With anyway it corrects in these cases, too.
func (c Change) count(bytes int64, anyway bool) bool {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	last := c.s.last.Load()
	if last == nil || last.space.Extent <= 0 || !anyway && (c.overlaps || c.s.begun != c.readings) {
		return false
	}
	if last.space.Missing > 0 {
		return true // what is freed cannot be used before a disk is back or taken out: the next reading shows that
	}
	next := *last
	free := next.space.Free - inExtents(bytes, next.space.Extent)
	if !anyway && (free < 0 || free > next.space.Capacity) {
		return false // others have changed the group since it was read
	}
	next.space.Free = min(next.space.Capacity, max(0, free))
	c.s.last.Store(&next)
	return true
}

// inExtents is what LVM takes for a volume of this size. bytes is negative for one that is removed.
func inExtents(bytes, extent int64) int64 {
	if bytes < 0 {
		return -inExtents(-bytes, extent)
	}
	return (bytes + extent - 1) / extent * extent
}

// Latest returns the last reading and its age. It fails if there is none, if it is older than
// TooOld, or if the volume group does not exist.
func (s *Space) Latest() (lvm.Space, time.Duration, error) {
	last, failed := s.last.Load(), s.failed.Load()
	why := errors.New("it has not been read yet")
	if failed != nil {
		why = *failed
	}
	if last == nil {
		return lvm.Space{}, 0, why
	}
	age := s.now().Sub(last.begun)
	if age > TooOld || failed != nil && errors.Is(*failed, lvm.ErrNoGroup) {
		return last.space, age, fmt.Errorf("%w (last read %s ago)", why, age.Round(time.Second))
	}
	return last.space, age, nil
}

// Watch reads the group again and again until ctx ends.
func (s *Space) Watch(ctx context.Context) {
	for pause.For(ctx, rereadEvery) == nil {
		_ = s.Refresh(ctx) // Refresh keeps the error, and latest returns it
	}
}

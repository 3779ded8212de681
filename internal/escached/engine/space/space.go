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
// and callers poll. Every verb that changes the group reads it again before the verb answers. It is
// also read once a minute, because others may use the group too.
type Space struct {
	store Store
	now   func() time.Time
	// refreshing is locked during a reading. last may be loaded at any time.
	refreshing sync.Mutex
	last       atomic.Pointer[reading]
	failed     atomic.Pointer[error]
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
	begun := s.now()
	read, err := s.store.Space(ctx)
	if err != nil {
		s.failed.Store(&err)
		return err
	}
	s.failed.Store(nil)
	s.last.Store(&reading{begun: begun, space: read})
	return nil
}

// Changed reads the group again after a verb has allocated bytes in it, or freed them if bytes is
// negative. If the group cannot be read now, changed corrects the last reading by bytes.
func (s *Space) Changed(ctx context.Context, bytes int64) {
	if s.Refresh(ctx) == nil {
		return
	}
	s.refreshing.Lock()
	defer s.refreshing.Unlock()
	if last := s.last.Load(); last != nil {
		next := *last
		next.space.Free = min(next.space.Capacity, max(0, next.space.Free-bytes))
		s.last.Store(&next)
	}
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

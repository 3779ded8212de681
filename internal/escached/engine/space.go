package engine

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

// space keeps the size of the volume group in memory: LVM takes seconds to start on a busy host,
// and callers poll. Every verb that changes the group reads it again before the verb answers. It is
// also read once a minute, because others may use the group too.
type space struct {
	store Store
	now   func() time.Time
	// reading serialises the readers. last may be loaded at any time.
	reading sync.Mutex
	last    atomic.Pointer[spaceReading]
	failed  atomic.Pointer[error]
}

type spaceReading struct {
	begun time.Time
	space lvm.Space
}

const (
	// rereadSpace is how often the group is read although no verb changed it.
	rereadSpace = time.Minute
	// spaceTooOld is the age from which a reading is reported as an error: a host that could not
	// read its group for so long is in trouble, not only busy.
	spaceTooOld = 5 * time.Minute
)

func newSpace(store Store, now func() time.Time) *space { return &space{store: store, now: now} }

// refresh returns after a reading that began no earlier than the call. Another caller may have done
// the reading.
func (s *space) refresh(ctx context.Context) error {
	asked := s.now()
	s.reading.Lock()
	defer s.reading.Unlock()
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
	s.last.Store(&spaceReading{begun: begun, space: read})
	return nil
}

// changed reads the group again after a verb has allocated bytes in it, or freed them if bytes is
// negative. If the group cannot be read now, changed corrects the last reading by bytes.
func (s *space) changed(ctx context.Context, bytes int64) {
	if s.refresh(ctx) == nil {
		return
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	if last := s.last.Load(); last != nil {
		next := *last
		next.space.Free = min(next.space.Capacity, max(0, next.space.Free-bytes))
		s.last.Store(&next)
	}
}

// latest returns the last reading and its age. It fails if there is none, if it is older than
// spaceTooOld, or if the volume group does not exist.
func (s *space) latest() (lvm.Space, time.Duration, error) {
	last, failed := s.last.Load(), s.failed.Load()
	why := errors.New("it has not been read yet")
	if failed != nil {
		why = *failed
	}
	if last == nil {
		return lvm.Space{}, 0, why
	}
	age := s.now().Sub(last.begun)
	if age > spaceTooOld || failed != nil && errors.Is(*failed, lvm.ErrNoGroup) {
		return last.space, age, fmt.Errorf("%w (last read %s ago)", why, age.Round(time.Second))
	}
	return last.space, age, nil
}

// watch reads the group again and again until ctx ends.
func (s *space) watch(ctx context.Context) {
	for pause.For(ctx, rereadSpace) == nil {
		_ = s.refresh(ctx) // refresh keeps the error, and latest returns it
	}
}

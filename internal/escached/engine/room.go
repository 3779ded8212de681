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

// room is what the volume group holds, kept in memory: LVM takes seconds to start on a busy host, and callers poll. It is read again by
// every verb that changes it, before that verb answers, and now and then for what others do to the group.
type room struct {
	store Store
	now   func() time.Time
	// reading serialises the readers; last may be looked at any time.
	reading sync.Mutex
	last    atomic.Pointer[roomReading]
	failed  atomic.Pointer[error]
}

type roomReading struct {
	begun time.Time
	space lvm.Space
}

const (
	// rereadRoom is how often the group is looked at without a reason.
	rereadRoom = time.Minute
	// roomTooOld is when a host that cannot read its group any more is in trouble, and not only busy.
	roomTooOld = 5 * time.Minute
)

func newRoom(store Store, now func() time.Time) *room { return &room{store: store, now: now} }

// refresh returns after a reading that began no earlier than the call, its own or another's.
func (r *room) refresh(ctx context.Context) error {
	asked := r.now()
	r.reading.Lock()
	defer r.reading.Unlock()
	if last := r.last.Load(); last != nil && last.begun.After(asked) {
		return nil
	}
	begun := r.now()
	space, err := r.store.Space(ctx)
	if err != nil {
		r.failed.Store(&err)
		return err
	}
	r.failed.Store(nil)
	r.last.Store(&roomReading{begun: begun, space: space})
	return nil
}

// changed is called by a verb that took bytes of the group, or gave some back if they are negative. Should the group not be readable
// now, the last reading is put right by what is known.
func (r *room) changed(ctx context.Context, bytes int64) {
	if r.refresh(ctx) == nil {
		return
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	if last := r.last.Load(); last != nil {
		next := *last
		next.space.Free = min(next.space.Capacity, max(0, next.space.Free-bytes))
		r.last.Store(&next)
	}
}

// space is the last reading and its age. An error says that there is none, or none that still means anything.
func (r *room) space() (lvm.Space, time.Duration, error) {
	last, failed := r.last.Load(), r.failed.Load()
	why := errors.New("it has not been read yet")
	if failed != nil {
		why = *failed
	}
	if last == nil {
		return lvm.Space{}, 0, why
	}
	age := r.now().Sub(last.begun)
	if age > roomTooOld || failed != nil && errors.Is(*failed, lvm.ErrNoGroup) {
		return last.space, age, fmt.Errorf("%w (last read %s ago)", why, age.Round(time.Second))
	}
	return last.space, age, nil
}

// watch reads the group again and again until ctx ends.
func (r *room) watch(ctx context.Context) {
	for pause.For(ctx, rereadRoom) == nil {
		_ = r.refresh(ctx) // kept, and told to whoever asks
	}
}

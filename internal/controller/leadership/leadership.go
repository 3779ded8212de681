// Package leadership knows, without asking anybody, whether this process still leads.
//
// A leader that was paused does not know it when it goes on: its calls continue where they stood, while another leads. So
// whatever is changed outside is preceded by Check, which goes by the time of the last renewal that was seen to succeed.
package leadership

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Lease is a leader election lock that remembers when it was last renewed.
type Lease struct {
	resourcelock.Interface

	valid  time.Duration
	margin time.Duration
	now    func() time.Time

	mu      sync.Mutex
	renewed time.Time
}

// New watches over a lock. valid is how long after a renewal was begun this process may act; it is less than the lease's
// duration, by margin, so that what was begun at the last moment ends before another leads.
func New(lock resourcelock.Interface, valid, margin time.Duration, now func() time.Time) *Lease {
	return &Lease{Interface: lock, valid: valid, margin: margin, now: now}
}

// Create takes the lock for the first time.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.observe(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update takes, renews or releases the lock.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.observe(record, func() error { return l.Interface.Update(ctx, record) })
}

// observe counts from before the call: when the API server has written it nobody here knows. A lease that has run out stays so: another may
// have led and ended in between, and what was begun here before is late, however new the lease.
func (l *Lease) observe(record resourcelock.LeaderElectionRecord, write func() error) error {
	begun := l.now()
	if err := write(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case record.HolderIdentity != l.Identity():
		l.renewed = time.Time{}
	case l.renewed.IsZero() || begun.Sub(l.renewed) < l.valid:
		l.renewed = begun
	}
	return nil
}

// Check returns an error unless this process surely leads.
func (l *Lease) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed.IsZero() {
		return fmt.Errorf("this replica does not lead: %w", volumes.ErrUnavailable)
	}
	if age := l.now().Sub(l.renewed); age >= l.valid {
		return fmt.Errorf("this replica's lease was last renewed %s ago, another may lead by now: %w",
			age.Round(time.Millisecond), volumes.ErrUnavailable)
	}
	return nil
}

// Watch calls lost once, as soon as a lease that this process has held has run out, and looks that often. Check keeps new changes from
// beginning; what a library had begun when the process was paused goes on with it, so lost must end the process and wait for nothing.
func (l *Lease) Watch(ctx context.Context, every time.Duration, lost func(age time.Duration)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		if age, out := l.ranOut(); out {
			lost(age)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// ranOut is not true of a lease that was never held, or was given back.
func (l *Lease) ranOut() (age time.Duration, out bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	age = l.now().Sub(l.renewed)
	return age, !l.renewed.IsZero() && age >= l.valid
}

// Package leadership knows whether this process still leads, without asking the API server.
//
// A leader that was paused does not notice: its calls go on where they stood, while another replica
// leads. So every change outside this process is preceded by Check, which compares the clock with
// the last renewal that succeeded.
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

// New returns a Lease around a lock. This process may act for valid after it began its last
// renewal. valid is shorter than the lease's duration by margin, so that what began at the last
// moment ends before another replica leads.
func New(lock resourcelock.Interface, valid, margin time.Duration, now func() time.Time) *Lease {
	return &Lease{Interface: lock, valid: valid, margin: margin, now: now}
}

// Get returns the record, and the bytes by which the election notices that it has changed. client-go
// writes times in whole seconds there: a replica that waits would overlook renewals within the same
// second, and lead up to a second too early. The record itself has microseconds.
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err != nil {
		return record, raw, err
	}
	return record, record.RenewTime.UTC().AppendFormat(raw, time.RFC3339Nano), nil
}

// Create takes the lock for the first time.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.observe(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update takes, renews or releases the lock.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.observe(record, func() error { return l.Interface.Update(ctx, record) })
}

// observe counts from before the call, because the time of the write is not known here. A lease
// that has run out stays so: another replica may have led in between, and what this process began
// before is late, however new the lease.
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

// Check returns ErrUnavailable unless this process certainly leads.
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

// Watch checks the lease's age at an interval, and calls lost once, when a lease that this process
// held has run out. Check keeps new changes from beginning, but what a library began before a pause
// goes on after it. So lost must end the process at once.
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

// ranOut reports whether a lease that was held, and not given back, has run out.
func (l *Lease) ranOut() (age time.Duration, out bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	age = l.now().Sub(l.renewed)
	return age, !l.renewed.IsZero() && age >= l.valid
}

// Package operation lets one operation at a time run on a volume, in every one of the daemons. The second is refused at once
// and told what runs and for how long: whoever asks repeats, and a queue behind a slow call would hide what all wait for.
package operation

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrBusy is what every refusal is, for errors.Is.
var ErrBusy = errors.New("busy")

// Locks are the volumes of a process on which something runs.
type Locks struct {
	now func() time.Time

	mu      sync.Mutex
	running map[string]operation
}

type operation struct {
	name  string
	since time.Time
}

// NewLocks returns locks that nobody has. The clock tells how old an operation is.
func NewLocks(now func() time.Time) *Locks {
	return &Locks{now: now, running: map[string]operation{}}
}

// Begin claims the volume for the named operation until done is called. The error of a refusal is ErrBusy and names the
// operation that runs and its age.
func (l *Locks) Begin(volume, name string) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := l.running[volume]; ok {
		age := l.now().Sub(other.since).Round(time.Millisecond)
		return nil, fmt.Errorf("%w: %s of volume %s has been running for %s; repeat %s when it has ended",
			ErrBusy, other.name, volume, age, name)
	}
	l.running[volume] = operation{name: name, since: l.now()}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.running, volume)
	}, nil
}

// Running names what runs on a volume, or "".
func (l *Locks) Running(volume string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running[volume].name
}

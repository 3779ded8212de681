// Package operation lets only one operation at a time run on a volume, within one process. A second
// one is refused at once, with the name and age of the running one. It is not queued: callers
// repeat their calls anyway, and a queue behind a slow call would hide what they all wait for.
package operation

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrBusy is the error of a refused operation, for errors.Is.
var ErrBusy = errors.New("busy")

// ageStep is how exactly the text of a BusyError tells the age: Kubernetes makes an Event of each
// different text.
const ageStep = 30 * time.Second

// BusyError is the refusal of an operation because another one runs. It is ErrBusy.
type BusyError struct {
	Running string // the operation that runs
	Volume  string
	Refused string // the operation that was refused
	Age     time.Duration
}

func (e *BusyError) Error() string {
	age := "less than " + ageStep.String()
	if e.Age >= ageStep {
		age = "more than " + e.Age.Truncate(ageStep).String()
	}
	return fmt.Sprintf("%v: %s of volume %s has been running for %s; repeat %s when it has ended",
		ErrBusy, e.Running, e.Volume, age, e.Refused)
}

// Unwrap makes errors.Is true for ErrBusy.
func (e *BusyError) Unwrap() error { return ErrBusy }

// Locks holds the operations that run in a process, by volume.
type Locks struct {
	now func() time.Time

	mu      sync.Mutex
	running map[string]operation
}

type operation struct {
	name  string
	since time.Time
}

// NewLocks returns Locks without any operation. now is the clock for the age of operations.
func NewLocks(now func() time.Time) *Locks {
	return &Locks{now: now, running: map[string]operation{}}
}

// Begin reserves the volume for the named operation until done is called. If another operation
// runs, the error is a *BusyError.
func (l *Locks) Begin(volume, name string) (done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if other, ok := l.running[volume]; ok {
		return nil, &BusyError{Running: other.name, Volume: volume, Refused: name, Age: l.now().Sub(other.since)}
	}
	l.running[volume] = operation{name: name, since: l.now()}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.running, volume)
	}, nil
}

// Running returns the name of the operation that runs on a volume, or "".
func (l *Locks) Running(volume string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running[volume].name
}

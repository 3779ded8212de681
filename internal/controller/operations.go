package controller

import (
	"fmt"
	"sync"
	"time"
)

// Operations lets one operation at a time run on a volume. The second is refused with ErrBusy, at once: whoever asks
// repeats, and a queue of calls behind a slow one would hide what everybody waits for.
type Operations struct {
	now func() time.Time

	mu      sync.Mutex
	running map[string]operation
}

type operation struct {
	name  string
	since time.Time
}

// NewOperations returns the locks of a process. The clock tells how old an operation is.
func NewOperations(now func() time.Time) *Operations {
	return &Operations{now: now, running: map[string]operation{}}
}

// Begin claims the volume for the named operation until done is called. The ErrBusy of a refusal names the operation that
// runs and its age.
func (o *Operations) Begin(volume, name string) (done func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if other, ok := o.running[volume]; ok {
		age := o.now().Sub(other.since).Round(time.Millisecond)
		return nil, fmt.Errorf("%s on volume %s has been running for %s, %s waits for it: %w", other.name, volume, age, name, ErrBusy)
	}
	o.running[volume] = operation{name: name, since: o.now()}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, volume)
	}, nil
}

package node

import (
	"fmt"
	"sync"
	"time"
)

// operations lets one operation at a time work on a volume. The second gets ErrBusy, which names the first and its age.
type operations struct {
	mu      sync.Mutex
	running map[string]operation
}

type operation struct {
	name  string
	since time.Time
}

func newOperations() *operations {
	return &operations{running: map[string]operation{}}
}

// begin claims a volume, or says who has it. The returned function ends the claim.
func (o *operations) begin(volume, name string) (end func(), err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if first, ok := o.running[volume]; ok {
		return nil, fmt.Errorf("%w: %s of volume %s has been running for %s", ErrBusy, first.name, volume,
			time.Since(first.since).Round(time.Millisecond))
	}
	o.running[volume] = operation{name, time.Now()}
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, volume)
	}, nil
}

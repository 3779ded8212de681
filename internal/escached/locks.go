package escached

import (
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// locks lets one operation at a time change a volume. Nobody waits: the second caller is told who is at it.
type locks struct {
	mu      sync.Mutex
	running map[string]operation
	now     func() time.Time
}

// operation is what runs on a volume.
type operation struct {
	Verb  string
	Since time.Time
}

func newLocks(now func() time.Time) *locks {
	return &locks{running: map[string]operation{}, now: now}
}

// try takes the volume for a verb or says who has it. release may be called once.
func (l *locks) try(ref escache.VolumeRef, verb string) (release func(), err error) {
	name := nameOf(ref)
	l.mu.Lock()
	defer l.mu.Unlock()
	if op, busy := l.running[name]; busy {
		return nil, failOn(ref, escache.CodeBusy, "%s has been running for %s; repeat this call when it has ended",
			op.Verb, l.now().Sub(op.Since).Round(time.Second))
	}
	l.running[name] = operation{Verb: verb, Since: l.now()}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.running, name)
	}, nil
}

// verb names what runs on a volume, or "".
func (l *locks) verb(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.running[name].Verb
}

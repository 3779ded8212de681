package placement

import "sync"

// Ledger is a State for many goroutines. It decides and stores in one step, so calls in flight
// count as placed.
// Its groups and volumes must be set from the Kubernetes API before the first volume is created.
type Ledger struct {
	mu    sync.Mutex
	state *State
}

// NewLedger returns a Ledger of a State. The State must not be used directly afterwards.
func NewLedger(s *State) *Ledger { return &Ledger{state: s} }

// Reserve decides where a volume goes and stores that. A volume that has a place keeps it: a
// repeated call gets the first answer, even if its request differs. Release removes the volume
// again if the call fails.
func (l *Ledger) Reserve(r Request) (Placement, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, ok := l.state.Volume(r.Volume); ok {
		return Placement{Group: v.Group, Primary: v.Primary, Partner: v.Partner}, nil
	}
	return l.place(r)
}

// Move decides again where a stored volume goes, as if it had no place, and stores that. On an error
// the old place stays.
func (l *Ledger) Move(r Request) (Placement, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.place(r)
}

func (l *Ledger) place(r Request) (Placement, error) {
	p, err := l.state.Decide(r)
	if err != nil {
		return Placement{}, err
	}
	l.state.SetVolume(Volume{
		Name: r.Volume, Group: p.Group, Primary: p.Primary, Partner: p.Partner, CacheBytes: r.CacheBytes, Engine: r.Engine,
	})
	return p, nil
}

// Grow makes a stored volume count with the request's bytes where it is, if the request would get a place
// now. On an error the volume counts as before.
func (l *Ledger) Grow(r Request) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	v, ok := l.state.Volume(r.Volume)
	if _, err := l.state.Decide(r); err != nil || !ok {
		return err
	}
	v.CacheBytes = r.CacheBytes
	l.state.SetVolume(v)
	return nil
}

// Partners is State.Partners.
func (l *Ledger) Partners(r Request) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Partners(r)
}

// Release is State.RemoveVolume.
func (l *Ledger) Release(volume string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.RemoveVolume(volume)
}

// SetVolume is State.SetVolume.
func (l *Ledger) SetVolume(v Volume) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.SetVolume(v)
}

// Volume is State.Volume.
func (l *Ledger) Volume(name string) (Volume, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Volume(name)
}

// SetGroup is State.SetGroup.
func (l *Ledger) SetGroup(g Group) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.SetGroup(g)
}

// RemoveGroup is State.RemoveGroup.
func (l *Ledger) RemoveGroup(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state.RemoveGroup(name)
}

// Usage is State.Usage.
func (l *Ledger) Usage() []Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state.Usage()
}

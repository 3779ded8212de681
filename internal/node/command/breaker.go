package command

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Stuck is a command that was killed and did not end.
type Stuck struct {
	Volume  string
	Command string
	PID     int
	Since   time.Time
}

// Breaker remembers stuck commands until they end.
type Breaker struct {
	mu    sync.Mutex
	stuck map[int]Stuck
}

// NewBreaker returns a breaker that is shut.
func NewBreaker() *Breaker {
	return &Breaker{stuck: map[int]Stuck{}}
}

// Open returns all stuck commands, the oldest first.
func (b *Breaker) Open() []Stuck {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]Stuck, 0, len(b.stuck))
	for _, s := range b.stuck {
		all = append(all, s)
	}
	slices.SortFunc(all, func(x, y Stuck) int { return x.Since.Compare(y.Since) })
	return all
}

// Check returns ErrStuck, and what is stuck since when, if a command of the volume is.
func (b *Breaker) Check(volume string) error {
	for _, s := range b.Open() {
		if s.Volume == volume {
			return fmt.Errorf("%q (pid %d) has been %w for %s: its device's I/O is frozen; see the volume's conditions",
				s.Command, s.PID, ErrStuck, time.Since(s.Since).Round(time.Second))
		}
	}
	return nil
}

// Reasons says, a sentence each, what is stuck. It is empty while the breaker is shut.
func (b *Breaker) Reasons() []string {
	open := b.Open()
	reasons := make([]string, 0, len(open))
	for _, s := range open {
		program, _, _ := strings.Cut(s.Command, " ")
		reasons = append(reasons, fmt.Sprintf("%s (pid %d) of volume %s has been stuck in the kernel for %s",
			program, s.PID, s.Volume, time.Since(s.Since).Round(time.Second)))
	}
	return reasons
}

func (b *Breaker) add(s Stuck) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stuck[s.PID] = s
}

func (b *Breaker) remove(pid int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.stuck, pid)
}

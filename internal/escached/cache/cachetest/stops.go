package cachetest

import "errors"

// Stops implements Breaker for a Host that calls NextChange before each change.
type Stops struct {
	left        int // counts down to the change at which the engine is stopped
	kill, broke bool
}

// Killed is the value of the panic that simulates a killed process.
type Killed struct{}

var errBroken = errors.New("broken off by the test")

// NextChange fails, or panics with Killed, at the change that BreakAt has named.
func (s *Stops) NextChange() error {
	if s.left == 0 {
		return nil
	}
	if s.left--; s.left > 0 {
		return nil
	}
	if s.broke = true; s.kill {
		panic(Killed{})
	}
	return errBroken
}

// BreakAt implements Breaker.
func (s *Stops) BreakAt(n int, kill bool) { *s = Stops{left: n, kill: kill} }

// Broke implements Breaker.
func (s *Stops) Broke() bool {
	broke := s.broke
	*s = Stops{}
	return broke
}

// Package labtest is what the end-to-end tests and benchmarks have in common: the running lab they
// are in, its hosts, volumes on them, writers whose acknowledgements are kept outside the host, and
// waiting for conditions instead of for time to pass.
package labtest

import (
	"context"
	"fmt"
	"time"
)

// T is the part of testing.TB that is used here, so that the benchmarks, which are no tests, can
// use the same code.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(f func())
	Failed() bool
}

// pollInterval is between two looks at a condition. A look is a call to an emulated host, so it
// must not be much shorter.
const pollInterval = 100 * time.Millisecond

// WaitFor looks at a condition until it is nil, and returns how long that took. The last answer is
// reported when it is not nil in time.
func WaitFor(t T, what string, limit time.Duration, condition func(context.Context) error) time.Duration {
	t.Helper()
	return waitEvery(t, pollInterval, what, limit, condition)
}

// WaitForCommand is WaitFor for what is seen by starting a program, such as kubectl. It looks once
// a second: more often, the program would take the processors from what is waited for.
func WaitForCommand(t T, what string, limit time.Duration, condition func(context.Context) error) time.Duration {
	t.Helper()
	return waitEvery(t, time.Second, what, limit, condition)
}

func waitEvery(t T, pause time.Duration, what string, limit time.Duration, condition func(context.Context) error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for {
		err := condition(ctx)
		if err == nil {
			return time.Since(begin)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %s: %v", what, limit, err)
			return limit
		case <-time.After(pause):
		}
	}
}

// Timeline takes the time of the steps of a test.
type Timeline struct {
	begin, last time.Time
	steps       []string
}

// NewTimeline starts now.
func NewTimeline() *Timeline {
	now := time.Now()
	return &Timeline{begin: now, last: now}
}

// Mark ends a step.
func (l *Timeline) Mark(step string) {
	now := time.Now()
	l.steps = append(l.steps, fmt.Sprintf("%8.2fs  %s", now.Sub(l.last).Seconds(), step))
	l.last = now
}

// Print logs all steps and their sum.
func (l *Timeline) Print(t T) {
	t.Helper()
	for _, step := range l.steps {
		t.Logf("%s", step)
	}
	t.Logf("%8.2fs  all of it", time.Since(l.begin).Seconds())
}

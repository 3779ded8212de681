// Package checklist makes checks one after the other, each with a deadline, and prints what they have
// found, with what to do about each that is not well. It knows nothing of what is checked.
package checklist

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// State says how a check has ended.
type State string

const (
	// OK means that all is well.
	OK State = "ok"
	// Warning means that it works, and that something should be changed.
	Warning State = "warning"
	// Failed means that it does not work before something is changed.
	Failed State = "failed"
	// Unknown means that it could not be checked, for want of something that Remedy names.
	Unknown State = "unknown"
)

// Result is one line of the list.
type Result struct {
	// Check is the name of what was checked. Empty: the name of the Check that has found it.
	Check string `json:"check"`
	State State  `json:"state"`
	// Found is what is there, a sentence or less.
	Found string `json:"found"`
	// Remedy says what to do. It is empty if all is well.
	Remedy string `json:"remedy,omitempty"`
}

// Goodf returns a Result that all is well.
func Goodf(format string, args ...any) Result {
	return Result{State: OK, Found: fmt.Sprintf(format, args...)}
}

// Badf returns a Result of the given state, with its remedy.
func Badf(state State, remedy, format string, args ...any) Result {
	return Result{State: state, Found: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Of returns the Result for one of several things that a check looks at.
func (r Result) Of(what string) Result {
	r.Check = what
	return r
}

// Check is one check. It may find several things.
type Check struct {
	Name string
	// Timeout bounds the check. Zero means DefaultTimeout.
	Timeout time.Duration
	Run     func(ctx context.Context) []Result
}

// One returns a check that finds one thing.
func One(name string, run func(ctx context.Context) Result) Check {
	return Check{Name: name, Run: func(ctx context.Context) []Result { return []Result{run(ctx)} }}
}

// DefaultTimeout bounds a check that has no timeout of its own.
const DefaultTimeout = 30 * time.Second

// grace is how long a check may go on after its deadline before nobody waits for it any more.
const grace = 3 * time.Second

// Run makes the checks one after the other. One that fails, or that does not end, does not keep the next
// from being made. It stops early only if ctx ends; the checks that are left are then unknown.
func Run(ctx context.Context, checks []Check) []Result {
	var all []Result
	for _, check := range checks {
		found := check.run(ctx)
		for i := range found {
			found[i].Check = cmp.Or(found[i].Check, check.Name)
		}
		all = append(all, found...)
	}
	return all
}

func (c Check) run(ctx context.Context) []Result {
	if ctx.Err() != nil {
		return []Result{Badf(Unknown, "run the checks again", "interrupted before it was checked")}
	}
	timeout := cmp.Or(c.Timeout, DefaultTimeout)
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ended := make(chan []Result, 1) // a check that is stuck in the kernel leaves its goroutine behind
	go func() { ended <- c.Run(limited) }()
	select {
	case found := <-ended:
		return found
	case <-limited.Done():
	}
	select {
	case found := <-ended:
		return found
	case <-time.After(grace):
		return []Result{Badf(Failed, "find out what does not answer; the kernel's log (dmesg) may name it", "no answer within %s", timeout)}
	}
}

// Count returns how many results have a state.
func Count(results []Result, state State) int {
	n := 0
	for _, r := range results {
		if r.State == state {
			n++
		}
	}
	return n
}

// ExitCode is 1 if a check has failed, and 0 otherwise. Warnings, and what could not be checked, do not
// count.
func ExitCode(results []Result) int {
	if slices.ContainsFunc(results, func(r Result) bool { return r.State == Failed }) {
		return 1
	}
	return 0
}

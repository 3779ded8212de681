package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// What an error of Run is, for errors.Is.
var (
	// ErrTimeout: the program took too long and was killed; it is gone.
	ErrTimeout = errors.New("took too long and was killed")
	// ErrStuck: this program, or an earlier one of the same volume, does not end although it was killed.
	ErrStuck = errors.New("stuck in the kernel")
)

// ExitError is a program's non-zero exit.
type ExitError struct {
	Command string
	Code    int
	Stdout  string
	Stderr  string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit %d: %s", e.Command, e.Code, e.Output())
}

// Output is the end of what the program said, in one line: its errors, or what it printed where it named none.
func (e *ExitError) Output() string {
	const most = 6
	said := strings.TrimSpace(e.Stderr)
	if said == "" {
		said = strings.TrimSpace(e.Stdout)
	}
	lines := strings.FieldsFunc(said, func(r rune) bool { return r == '\n' || r == '\r' })
	return strings.Join(lines[max(0, len(lines)-most):], "; ")
}

// ExitCode returns the exit code in err, or -1.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Code
	}
	return -1
}

// TimeoutError is a program that was killed because its time was up.
type TimeoutError struct {
	Command string
	After   time.Duration
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s: not finished after %s, killed", e.Command, e.After.Round(time.Millisecond))
}

// Unwrap makes it a context.DeadlineExceeded too, for callers that only care about that.
func (e *TimeoutError) Unwrap() []error { return []error{ErrTimeout, context.DeadlineExceeded} }

// StuckError is a child that not even SIGKILL ends, because the kernel does not return to it.
type StuckError struct {
	Command string
	Pid     int
	Since   time.Time
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%s (process %d) has been stuck in the kernel for %s; "+
		"what it waits for (Ceph, the DRBD peer, a disk) must return first",
		e.Command, e.Pid, time.Since(e.Since).Round(time.Second))
}

// Unwrap makes it an ErrStuck.
func (e *StuckError) Unwrap() error { return ErrStuck }

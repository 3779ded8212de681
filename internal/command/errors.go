package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Errors of Run, for errors.Is.
var (
	// ErrTimeout: the program took too long, was killed, and has ended.
	ErrTimeout = errors.New("took too long and was killed")
	// ErrStuck: this program, or an earlier one of the same volume, was killed and has not ended.
	ErrStuck = errors.New("stuck in the kernel")
)

// ExitError reports a program's non-zero exit.
type ExitError struct {
	Command string
	Code    int
	Stdout  string
	Stderr  string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s: exit %d: %s", e.Command, e.Code, e.Output())
}

// Output returns the first and the last lines of the program's standard error in one line, or of its
// standard output if it wrote no errors. Some programs give their reason first and then their usage.
func (e *ExitError) Output() string {
	const first, last = 2, 6
	said := strings.TrimSpace(e.Stderr)
	if said == "" {
		said = strings.TrimSpace(e.Stdout)
	}
	lines := strings.FieldsFunc(said, func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) > first+last {
		lines = slices.Concat(lines[:first], []string{"…"}, lines[len(lines)-last:])
	}
	return strings.Join(lines, "; ")
}

// ExitCode returns the exit code in err, or -1.
func ExitCode(err error) int {
	if exit, ok := errors.AsType[*ExitError](err); ok {
		return exit.Code
	}
	return -1
}

// TimeoutError reports a program that was killed because its time was up.
type TimeoutError struct {
	Command string
	After   time.Duration
}

func (e *TimeoutError) Error() string {
	after := e.After.Round(time.Millisecond)
	if after >= time.Second {
		after = after.Round(time.Second) // the same text in each try
	}
	return fmt.Sprintf("%s: not finished after %s, killed", e.Command, after)
}

// Unwrap makes errors.Is true for ErrTimeout and for context.DeadlineExceeded.
func (e *TimeoutError) Unwrap() []error { return []error{ErrTimeout, context.DeadlineExceeded} }

// StuckError reports a child that SIGKILL does not end, because it hangs in the kernel (D state).
type StuckError struct {
	Command string
	Pid     int
	Since   time.Time
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%s (process %d) has been stuck in the kernel since %s; "+
		"what it waits for (Ceph, the DRBD peer, a disk) must return first",
		e.Command, e.Pid, e.Since.UTC().Format(time.RFC3339))
}

// Unwrap makes errors.Is true for ErrStuck.
func (e *StuckError) Unwrap() error { return ErrStuck }

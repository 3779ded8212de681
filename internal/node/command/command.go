// Package command runs programs as children with a deadline, and keeps count of those the kernel does not let go.
//
// A mount or a mkfs on a device whose I/O is frozen sits in the kernel (D state), where no signal reaches it. Such a child is
// left behind, its volume's breaker opens, and no further command is started for that volume until the child has ended.
package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of Run.
var (
	// ErrStuck: this command, or an earlier one of the same volume, does not end although it was killed.
	ErrStuck = errors.New("stuck in the kernel")
	// ErrTimeout: the command took too long and was killed; it is gone.
	ErrTimeout = errors.New("took too long and was killed")
)

// Command is one program run for one volume.
type Command struct {
	// Volume is what the breaker counts by: a stuck command stops all others of the same volume.
	Volume string
	Name   string
	Args   []string
	// Timeout bounds the command in addition to the context. Zero means no bound of its own.
	Timeout time.Duration
}

// String is the command as a shell would show it, without quoting.
func (c Command) String() string {
	return strings.Join(append([]string{c.Name}, c.Args...), " ")
}

// Result is what a command that ended with exit code 0 said.
type Result struct {
	Stdout string
	Stderr string
}

// ExitError is a command that ended with another exit code than 0.
type ExitError struct {
	Command string
	Code    int
	Stdout  string
	Stderr  string
}

// Error names the command, its exit code and what it said.
func (e *ExitError) Error() string {
	said := strings.TrimSpace(e.Stderr)
	if said == "" {
		said = strings.TrimSpace(e.Stdout)
	}
	return fmt.Sprintf("%s: exit code %d: %s", e.Command, e.Code, strings.Join(strings.FieldsFunc(said, isLineEnd), "; "))
}

func isLineEnd(r rune) bool { return r == '\n' || r == '\r' }

// Runner runs commands. Its errors are *ExitError, ErrStuck, ErrTimeout, the context's, or that of a program that is missing.
type Runner interface {
	Run(ctx context.Context, c Command) (Result, error)
}

// RunnerFunc makes a function a Runner.
type RunnerFunc func(ctx context.Context, c Command) (Result, error)

// Run calls the function.
func (f RunnerFunc) Run(ctx context.Context, c Command) (Result, error) { return f(ctx, c) }

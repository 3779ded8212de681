// Package failure has the errors by which commands of the plugin end, their exit codes, and the
// sentences that users read.
package failure

import "errors"

// Exit codes, for scripts.
const (
	Done     = 0
	Failed   = 1 // refused, not found, or the work failed
	Usage    = 2 // the command line is wrong
	TimeUp   = 3 // not finished within --timeout, or interrupted
	Declined = 4 // the user did not type the name
)

// Errors with an exit code of their own.
var (
	ErrUsage       = errors.New("usage")
	ErrTimeUp      = errors.New("time is up")
	ErrInterrupted = errors.New("interrupted")
	ErrDeclined    = errors.New("nothing was changed")
)

// ExitCode returns the exit code of a command that ends with err.
func ExitCode(err error) int {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, ErrUsage):
		return Usage
	case errors.Is(err, ErrTimeUp), errors.Is(err, ErrInterrupted):
		return TimeUp
	case errors.Is(err, ErrDeclined):
		return Declined
	default:
		return Failed
	}
}

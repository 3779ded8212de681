package command

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/escache/escache-csi/internal/traces"
)

// subcommand matches what drbdadm, dmsetup and the like are told to do, and no option or path.
var subcommand = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// program is what a trace says of a run: the program, and its first argument if that is a word such as
// "primary" in "drbdadm primary". No other argument gets there.
func (c Command) program() string {
	name := filepath.Base(c.Name)
	if c.Name == "/proc/self/exe" {
		name = filepath.Base(os.Args[0])
	}
	if c.Verb != "" {
		return name + " " + c.Verb
	}
	if len(c.Args) > 0 && subcommand.MatchString(c.Args[0]) {
		name += " " + c.Args[0]
	}
	return name
}

// Traced runs a program as a step of the trace in ctx.
func Traced(ctx context.Context, c Command, run RunnerFunc) (Result, error) {
	if !traces.On(ctx) {
		return run(ctx, c)
	}
	ctx, step := traces.Begin(ctx, c.program())
	defer step.End()
	res, err := run(ctx, c)
	describe(step, err)
	return res, err
}

// describe tells a trace how a run ended.
func describe(step traces.Step, err error) {
	exit, exited := errors.AsType[*ExitError](err)
	switch {
	case err == nil:
		step.SetInt("process.exit.code", 0)
	case exited:
		step.SetInt("process.exit.code", exit.Code)
		step.Fail("exit " + strconv.Itoa(exit.Code))
	case errors.Is(err, ErrStuck):
		step.Fail("stuck in the kernel")
	case errors.Is(err, ErrTimeout):
		step.Fail("not finished in time")
	default:
		step.Fail("not started")
	}
}

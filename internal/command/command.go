// Package command runs other programs with a deadline, without a shell, and captures their output.
// It never waits for a process that is stuck in the kernel.
package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Command is one run of a program. Args must hold no secrets: every user of the host can read them.
type Command struct {
	// Volume is the breaker's key: while a child of this volume is stuck in the kernel, only
	// queries run for the volume.
	Volume string
	Name   string
	Args   []string
	// Verb is what the program is to do, for traces. Without it that is the first argument, if it is a word.
	Verb  string
	Stdin []byte
	// Timeout limits the run. Zero means DefaultTimeout.
	Timeout time.Duration
	// Query marks a command that changes nothing, and that may run on a volume with a stuck change.
	Query bool
	// Mark: if this run outlives this process, because it hangs in the kernel, the next process must
	// learn of it: see Exec.Inherit. The program must start no daemon: that would have the mark, too.
	Mark bool
}

// DefaultTimeout applies to commands without a timeout of their own. It is long because a host
// under load is slow, not broken.
const DefaultTimeout = 30 * time.Second

// killGrace is how long a killed child may take to end before it counts as stuck in the kernel.
const killGrace = 2 * time.Second

// maxOutput is how many bytes of a child's output are kept.
const maxOutput = 8 << 20

// Result is the output of a finished program.
type Result struct {
	Stdout []byte
	Stderr []byte
}

// Runner runs commands. Exec is the real one.
type Runner interface {
	// Run returns *ExitError for a non-zero exit, *TimeoutError if the deadline passed, and
	// *StuckError if this child, or an earlier one of the same volume, could not be killed.
	Run(ctx context.Context, c Command) (Result, error)
}

// RunnerFunc is a function as a Runner.
type RunnerFunc func(ctx context.Context, c Command) (Result, error)

// Run calls the function.
func (f RunnerFunc) Run(ctx context.Context, c Command) (Result, error) { return f(ctx, c) }

// Exec is the Runner that really starts programs.
type Exec struct {
	breaker *Breaker
	now     func() time.Time
	// marks is the directory of the marks of runs; empty if runs are not marked.
	marks string
}

// NewExec returns an Exec with its own breaker. It marks no runs before Inherit is called.
func NewExec() *Exec { return &Exec{breaker: NewBreaker(), now: time.Now} }

// Stuck returns the children that are stuck now, by volume.
func (x *Exec) Stuck() map[string]*StuckError { return x.breaker.Stuck() }

// Reasons returns one sentence for each volume with a stuck child.
func (x *Exec) Reasons() []string {
	stuck := x.Stuck()
	reasons := make([]string, 0, len(stuck))
	for _, volume := range slices.Sorted(maps.Keys(stuck)) {
		reasons = append(reasons, "volume "+volume+": "+stuck[volume].Error())
	}
	return reasons
}

// Run implements Runner. A run is a step of the trace in ctx.
func (x *Exec) Run(ctx context.Context, c Command) (Result, error) { return Traced(ctx, c, x.run) }

func (x *Exec) run(ctx context.Context, c Command) (Result, error) {
	if err := x.breaker.Allow(c.Volume, c.Query); err != nil {
		return Result{}, err
	}
	timeout := c.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()

	var stdout, stderr limited
	// Not CommandContext: its Wait would wait for a child in D state for ever.
	cmd := exec.Command(c.Name, c.Args...) //nolint:noctx // see above
	if c.Stdin != nil {
		cmd.Stdin = bytes.NewReader(c.Stdin)
	}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C") // its words are read by programs
	// A child must not outlive this process: it would go on with work that the next process takes
	// for undone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = killGrace
	m, err := x.mark(c)
	if err != nil {
		return Result{}, err
	}
	start := x.now()
	done, err := spawn(cmd, m)
	if err != nil {
		return Result{}, fmt.Errorf("start %s (is its package installed?): %w", c.Name, err)
	}

	select {
	case err := <-done:
		return finish(c, &stdout, &stderr, err)
	case <-ctx.Done():
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	select {
	case err := <-done:
		if err == nil { // it finished while it was being killed
			return finish(c, &stdout, &stderr, nil)
		}
		return Result{}, &TimeoutError{Command: c.String(), After: x.now().Sub(start)}
	case <-time.After(killGrace + time.Second):
	}
	stuck := &StuckError{Command: c.String(), Pid: cmd.Process.Pid, Since: start}
	x.breaker.Trip(c.Volume, c.Query, stuck, done)
	return Result{}, stuck
}

// spawn starts a child and sends the result of Wait on the channel. The kernel sends Pdeathsig when
// the thread that started the child ends, so spawn keeps that thread until the child is gone.
func spawn(cmd *exec.Cmd, m *mark) (<-chan error, error) {
	started, done := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.start(cmd)
		started <- err
		if err == nil {
			err = cmd.Wait()
			m.ended()
		}
		done <- err
	}()
	return done, <-started
}

func finish(c Command, stdout, stderr *limited, err error) (Result, error) {
	res := Result{Stdout: stdout.bytes(), Stderr: stderr.bytes()}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return res, nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return res, &ExitError{Command: c.String(), Code: exit.ExitCode(), Stdout: string(res.Stdout), Stderr: string(res.Stderr)}
	}
	return res, fmt.Errorf("%s: %w", c.String(), err)
}

// String returns the program and its first arguments, for messages.
func (c Command) String() string {
	words := append([]string{c.Name[strings.LastIndexByte(c.Name, '/')+1:]}, c.Args...)
	if len(words) > 6 {
		words = append(words[:6:6], "…")
	}
	return strings.Join(words, " ")
}

package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// killGrace is how long a killed child may take to end before it counts as stuck.
const killGrace = 2 * time.Second

// outputLimit in bytes is what is kept of each of a command's two outputs.
const outputLimit = 64 << 10

// Children runs commands as child processes, each in a process group of its own.
type Children struct {
	breaker *Breaker
}

// NewChildren returns a Runner whose stuck children open the breaker.
func NewChildren(breaker *Breaker) *Children {
	return &Children{breaker: breaker}
}

// Run starts the command and waits for it. When time is up the whole process group is killed.
func (r *Children) Run(ctx context.Context, c Command) (Result, error) {
	if err := r.breaker.Check(c.Volume); err != nil {
		return Result{}, fmt.Errorf("%s not started: %w", c.Name, err)
	}
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("%s not started: %w", c.Name, err)
	}
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	stdout, stderr := &limited{}, &limited{}
	// Not CommandContext: it waits for the child without end, and this one must come back.
	cmd := exec.Command(c.Name, c.Args...) //nolint:noctx // the deadline is kept below
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.WaitDelay = killGrace / 2
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	started := time.Now()
	if err := cmd.Start(); err != nil {
		return Result{}, fmt.Errorf("start %s: %w", c.Name, err)
	}
	var ending error // may be read once ended is closed
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ending = cmd.Wait()
	}()

	select {
	case <-ended:
		return result(c, stdout, stderr, ending)
	case <-ctx.Done():
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	select {
	case <-ended:
		return Result{}, fmt.Errorf("%s %w after %s", c.Name, ErrTimeout, time.Since(started).Round(time.Second))
	case <-time.After(killGrace):
	}
	r.breaker.add(Stuck{Volume: c.Volume, Command: c.String(), PID: cmd.Process.Pid, Since: started})
	go func() {
		<-ended
		r.breaker.remove(cmd.Process.Pid)
	}()
	return Result{}, r.breaker.Check(c.Volume)
}

func result(c Command, stdout, stderr *limited, err error) (Result, error) {
	if err == nil {
		return Result{Stdout: stdout.String(), Stderr: stderr.String()}, nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return Result{}, &ExitError{Command: c.String(), Code: exit.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
	}
	return Result{}, fmt.Errorf("%s: %w", c.Name, err)
}

// limited keeps the first bytes that are written and lets the rest go.
type limited struct {
	buffer bytes.Buffer
}

func (l *limited) Write(p []byte) (int, error) {
	l.buffer.Write(p[:min(len(p), outputLimit-l.buffer.Len())])
	return len(p), nil
}

func (l *limited) String() string { return l.buffer.String() }

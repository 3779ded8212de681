// Package process runs the lab's daemons as children in the foreground. A child ends with the
// process that started it, and its output goes to a file. This package never restarts a daemon: the
// caller decides what to do when one ends.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Spec says what to run.
type Spec struct {
	Name  string   // for messages, e.g. "osd.0"
	Path  string   // a path, or a name looked up in PATH
	Args  []string // without the program itself
	Argv0 string   // what the child sees as its own name; empty: Path
	Env   []string // added to the parent's environment
	Dir   string   // working directory; empty: the parent's
	Log   string   // file that stdout and stderr are appended to
}

// Process is one running, paused or ended child.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	done chan struct{}

	mu  sync.Mutex
	err error // how it ended; set before done is closed
}

// Start starts the child and returns at once; its readiness is the caller's to wait for.
func Start(spec Spec) (*Process, error) {
	if err := os.MkdirAll(filepath.Dir(spec.Log), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	defer log.Close()

	cmd := exec.Command(spec.Path, spec.Args...)
	if spec.Argv0 != "" {
		cmd.Args[0] = spec.Argv0
	}
	cmd.Env = append(os.Environ(), spec.Env...)
	cmd.Dir = spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	// A group of its own keeps a terminal's Ctrl-C with the parent, which then ends its children in
	// order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	p := &Process{spec: spec, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", spec.Name, err)
	}
	return p, nil
}

// run stays on one OS thread from start to end: the kernel sends the parent-death signal when the
// thread that forked ends, not the process.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	err = p.cmd.Wait()
	if err == nil {
		err = errors.New("exit status 0")
	}
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	close(p.done)
}

// Name is the name given in the Spec.
func (p *Process) Name() string { return p.spec.Name }

// Log is the file that holds the child's output.
func (p *Process) Log() string { return p.spec.Log }

// PID is the child's process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the child has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err is nil while the child runs, and afterwards says how it ended, with the last lines of its
// log.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return nil
	}
	return fmt.Errorf("%s ended (%w); the end of %s:\n%s", p.spec.Name, p.err, p.spec.Log, Tail(p.spec.Log, 10))
}

// Signal sends a signal to the child. It does nothing if the child has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.spec.Name, err)
	}
	return nil
}

// Stop asks the child to end and kills it if it has not when ctx is done or the grace is over. It
// returns when the child is gone.
func (p *Process) Stop(ctx context.Context, grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	case <-timer.C:
	}
	return p.Kill()
}

// Kill ends the child without asking, paused or not, and returns when it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(time.Minute): // one that waits for a disk ends after that
		return fmt.Errorf("%s (pid %d) does not end on SIGKILL: it hangs in the kernel, see /proc/%d/stack", p.spec.Name, p.PID(), p.PID())
	}
}

// Pause stops the child with SIGSTOP and returns when all its threads stand still.
func (p *Process) Pause(ctx context.Context) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return Wait(ctx, p, "stand still", 5*time.Millisecond, func(context.Context) error { return p.standsStill() })
}

// Continue lets a paused child go on.
func (p *Process) Continue() error { return p.Signal(syscall.SIGCONT) }

// standsStill is nil when every thread is in state T.
func (p *Process) standsStill() error {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
	if err != nil {
		return err
	}
	for _, stat := range stats {
		line, err := os.ReadFile(stat)
		if err != nil {
			continue // the thread ended meanwhile
		}
		// "PID (NAME) STATE …", and NAME may hold anything but ends at the last parenthesis.
		fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
		if len(fields) == 0 || fields[0] != "T" {
			return fmt.Errorf("thread %s still runs", filepath.Base(filepath.Dir(stat)))
		}
	}
	return nil
}

// Wait repeats check until it is nil. It gives up when ctx is done or the child has ended, and then
// says what it waited for and what was last missing.
func Wait(ctx context.Context, p *Process, what string, every time.Duration, check func(context.Context) error) error {
	start := time.Now()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-p.Done():
			return fmt.Errorf("wait for %s to %s: %w", p.Name(), what, p.Err())
		case <-ctx.Done():
			waited := time.Since(start).Round(time.Second / 10)
			return fmt.Errorf("%s did not %s within %s: %w (log: %s)", p.Name(), what, waited, err, p.Log())
		}
	}
}

// Tail returns the last lines of a file, or why it cannot be read.
func Tail(path string, lines int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// statusTimeout bounds the question for the state of one volume: it waits for no I/O.
	statusTimeout = 2 * time.Second
	// serveTimeout bounds the wait for a process that recovers its log, or that hangs. The one that recovers goes on
	// after that, and the next call waits for it.
	serveTimeout = 2 * time.Minute
	// answerPoll is how often a process that was started is asked whether it serves.
	answerPoll = 20 * time.Millisecond
)

func (e *Engine) client(name string) *control.Client { return control.NewClient(e.plans.socket(name)) }

func (e *Engine) status(ctx context.Context, name string) (control.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	return e.client(name).Status(ctx)
}

// unserved says why nothing serves a volume, or "" if its process does.
func unserved(s control.Status, err error) string {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Sprintf("its process does not answer (%v)", err)
	case err != nil:
		return fmt.Sprintf("its process has died (%v)", err)
	case s.Broken != "":
		return "the log has failed: " + s.Broken
	case s.Stopping:
		return "its process is about to end"
	}
	return ""
}

// reading is why nothing serves a volume whose process runs and does not listen yet.
const reading = "its process reads the log, or waits for a disk"

// serve returns the state of the process that serves a volume, and starts it if it is dead, or if its log
// has failed. It waits until the process has opened its log. If that takes too long the error wraps
// cache.ErrRecovering.
func (e *Engine) serve(ctx context.Context, name string, p plan) (control.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, serveTimeout)
	defer cancel()
	status, err := e.status(ctx, name)
	if err == nil && unserved(status, nil) == "" {
		return status, nil
	}
	running, lookErr := e.processes.Running(name)
	if lookErr != nil {
		return status, lookErr
	}
	// A successor takes the device over by itself from one that answers and can do nothing more for it.
	if !running || err == nil && status.Broken != "" {
		if err := e.processes.Start(ctx, name, p.arguments(name, e.plans)); err != nil {
			return status, fmt.Errorf("%w: %w", cache.ErrUnserved, err)
		}
	}
	return e.answer(ctx, name)
}

// answer waits until the process of a volume serves it. The end of the context cuts no question off: that would look like a
// process that hangs.
func (e *Engine) answer(ctx context.Context, name string) (control.Status, error) {
	for {
		status, statusErr := e.status(context.WithoutCancel(ctx), name)
		why := unserved(status, statusErr)
		if why == "" {
			return status, nil
		}
		running, err := e.processes.Running(name)
		if err != nil {
			return status, err
		}
		if !running {
			return status, ended(e.processes.LastWords(name))
		}
		if wait := pause.For(ctx, answerPoll); wait != nil {
			if deaf(statusErr) {
				return status, recovering()
			}
			return status, fmt.Errorf("%w: %s: %w", cache.ErrUnserved, why, wait)
		}
	}
}

// recovering is the error of a process that has not come to serve yet.
func recovering() error {
	return fmt.Errorf("%w: %w: %s; it goes on with that: repeat the call", cache.ErrUnserved, cache.ErrRecovering, reading)
}

// ended is the error of a process that did not come to serve.
func ended(words string) error {
	kind := cache.ErrUnserved
	if strings.Contains(words, process.ErrLosses.Error()) { // the kind of an error does not leave the process
		kind = cache.ErrCorrupt
	}
	return fmt.Errorf("%w: its process has ended: %s", kind, words)
}

// called returns the error of a call to a process as callers know it.
func called(err error) error {
	if errors.Is(err, control.ErrUnreachable) || errors.Is(err, control.ErrStopping) || errors.Is(err, control.ErrBroken) {
		return fmt.Errorf("%w: %w", cache.ErrUnserved, err)
	}
	return err
}

// deaf reports whether nobody listens at the socket of a process: it is dead, or has not begun to serve.
func deaf(err error) bool { return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) }

// end ends the process of a volume with its device, which nobody has open. clean reports whether the log
// has everything that was answered. If not, the memory of the process has it still.
func (e *Engine) end(ctx context.Context, name string) (clean bool, err error) {
	running, err := e.processes.Running(name)
	if err != nil {
		return false, err
	}
	stopped := control.ErrUnreachable
	if running {
		stopped = e.client(name).Stop(ctx)
	}
	switch {
	case stopped == nil, errors.Is(stopped, control.ErrStopping):
		return stopped == nil, e.processes.Gone(ctx, name)
	case errors.Is(stopped, control.ErrBroken), deaf(stopped):
		// Nothing more comes to the log, or nothing was answered yet.
		err = e.processes.Kill(ctx, name)
	case running && errors.Is(stopped, control.ErrUnreachable):
		// One that hangs is not killed: what it has answered may not be in the log.
		if running, err = e.processes.Running(name); err == nil && running {
			err = called(stopped)
		}
	case running:
		err = stopped
	}
	if err != nil {
		return false, err
	}
	return false, e.disconnect(ctx, name)
}

// disconnect removes the device of a process that ends, whoever has it open.
func (e *Engine) disconnect(ctx context.Context, name string) error {
	if err := e.processes.Gone(ctx, name); err != nil {
		return err
	}
	devices, err := e.kernel.Connected()
	if err != nil {
		return err
	}
	if found, there := devices[process.Backend(name)]; there {
		return e.kernel.Disconnect(ctx, found.Index)
	}
	return nil
}

package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// File descriptors that the supervisor gets.
const (
	fdSteps   = 3 // where it prints steps until it is ready
	fdLife    = 4 // a socket to the process that started it: the result goes out, and its end before that ends the start
	fdClaim   = 5 // the lab's directory with its lock
	planFile  = "plan.json"
	superLog  = "supervisor.log"
	superVerb = "supervise"
)

// endTime bounds how long a lab may take to end.
const endTime = 30 * time.Second

// outcome is what the supervisor says about the start.
type outcome struct {
	Error string `json:"error,omitempty"`
}

// Up starts a lab and returns when all of it is usable. When ctx ends before that, nothing is left.
func Up(ctx context.Context, location labclient.Location, options Options) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	lock, err := claim(location)
	if errors.Is(err, errTaken) {
		return fmt.Errorf("lab %q is up already; see `lab status`, or end it with `lab down`", location.Name)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := empty(location); err != nil {
		return err
	}
	steps := progress.New(os.Stdout)
	plan, err := Prepare(ctx, location, options, steps)
	if err != nil {
		return errors.Join(interrupted(ctx, err), removeAll(location))
	}
	return launch(ctx, plan, lock)
}

func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted: nothing is left")
	}
	return err
}

// launch starts the supervisor and waits for its word.
func launch(ctx context.Context, plan Plan, lock *os.File) error {
	data, err := json.Marshal(plan) //nolint:musttag // both ends are this program
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if err := os.WriteFile(filepath.Join(plan.Location.StateDir, planFile), data, 0o600); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	ours, theirs, err := socketPair()
	if err != nil {
		return err
	}
	defer ours.Close()
	log, err := os.Create(filepath.Join(plan.Location.StateDir, superLog))
	if err != nil {
		return fmt.Errorf("supervisor's log: %w", err)
	}
	defer log.Close()
	// The link stays valid when the file it names is removed, as `go run` does.
	cmd := exec.Command("/proc/self/exe", superVerb, plan.Location.StateDir)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{os.Stdout, theirs, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		return errors.Join(fmt.Errorf("start the supervisor (are you root?): %w", err), removeAll(plan.Location))
	}
	result, err := await(ctx, ours)
	if err == nil && result.Error == "" {
		return cmd.Process.Release()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its word, or the lack of it, says more than its status
	}()
	ours.Close()
	select {
	case <-ended:
	case <-time.After(endTime):
		_ = cmd.Process.Kill() // it takes everything below it along
		<-ended
	}
	if ctx.Err() != nil {
		return errors.Join(interrupted(ctx, nil), removeAll(plan.Location))
	}
	if err != nil {
		return fmt.Errorf("the supervisor ended without a word (%w); see %s", err, log.Name())
	}
	return errors.New(result.Error)
}

// await reads the supervisor's word; an end of the connection without one is an error.
func await(ctx context.Context, conn *os.File) (outcome, error) {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var result outcome
	data, err := io.ReadAll(conn)
	if err != nil {
		return result, err
	}
	return result, json.Unmarshal(data, &result)
}

func socketPair() (*os.File, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "supervisor"), os.NewFile(uintptr(fds[1]), "starter"), nil
}

// Down ends a lab, and removes what one that crashed has left. It says nothing when there is none.
func Down(ctx context.Context, location labclient.Location) error {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	client := labclient.New(location)
	supervisor, err := client.Supervisor(ctx)
	if err == nil {
		top := parent(supervisor)
		if err := client.Down(ctx); err != nil {
			_ = syscall.Kill(supervisor, syscall.SIGKILL) // it does not listen any more
		}
		if err := waitGone(ctx, supervisor, top); err != nil {
			return err
		}
	}
	lock, err := claimSoon(ctx, location)
	if err != nil {
		return err
	}
	defer lock.Close()
	return removeAll(location)
}

// claimSoon waits for a lab that is still starting, or has just ended, to let go.
func claimSoon(ctx context.Context, location labclient.Location) (*os.File, error) {
	for {
		lock, err := claim(location)
		if !errors.Is(err, errTaken) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("lab %q is held by a process that is starting it (see `fuser %s`): end that first",
				location.Name, location.StateDir)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// waitGone waits until processes have ended, and with the upper one, which is the first of its
// namespace, everything in there.
func waitGone(ctx context.Context, pids ...int) error {
	for _, pid := range pids {
		for alive(pid) {
			select {
			case <-ctx.Done():
				_ = syscall.Kill(pid, syscall.SIGKILL) // the next try of the caller finds out
				return fmt.Errorf("process %d of the lab does not end: %w", pid, ctx.Err())
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	return nil
}

func alive(pid int) bool {
	state, _ := stat(pid)
	return state != "" && state != "Z"
}

// parent is 0 where there is no such process.
func parent(pid int) int {
	_, ppid := stat(pid)
	return ppid
}

func stat(pid int) (state string, ppid int) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	fields := strings.Fields(string(line[bytes.LastIndexByte(line, ')')+1:]))
	if len(fields) < 2 {
		return "", 0
	}
	ppid, _ = strconv.Atoi(fields[1]) // the kernel writes a number
	return fields[0], ppid
}

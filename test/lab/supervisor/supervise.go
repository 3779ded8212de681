package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/escache/escache-csi/test/internal/progress"
)

// startTime bounds a start, once everything is prepared. A loaded machine may need much of it.
const startTime = 10 * time.Minute

// IsSupervisor reports whether this process was started to be a lab's supervisor.
func IsSupervisor(args []string) bool { return len(args) == 3 && args[1] == superVerb }

// Supervise is the whole life of a lab's supervisor; its result is the exit status. In a new PID
// namespace it is process 1 first: that one makes the namespaces its own, starts itself again to do
// the work, and buries orphans until that ends.
func Supervise(stateDir string) int {
	if os.Getpid() == 1 {
		if err := ownNamespaces(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return first(stateDir)
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err := supervise(stateDir); err != nil {
		slog.Error("the lab ends", "error", err)
		return 1
	}
	return 0
}

// comeFirst gives this session, which all of the lab is in, more of the processors than others get.
// Where the kernel shares them between sessions (sched_autogroup_enabled), a build in another one
// takes half of them from the hosts, however nice it is, and clocks and time-outs in there do not
// wait. Where it does not, or forbids it, nothing is lost but time.
func comeFirst() {
	if err := os.WriteFile("/proc/self/autogroup", []byte(sessionNice), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "processor time of the session:", err)
	}
}

// sessionNice is worth about nine sessions at 0.
const sessionNice = "-10"

func ownNamespaces() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("own mount namespace: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// first is process 1 of the lab. It must not use os/exec to wait: it waits for every child there
// is.
func first(stateDir string) int {
	cmd := exec.Command("/proc/self/exe", superVerb, stateDir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	for fd := fdSteps; fd <= fdClaim; fd++ {
		file := os.NewFile(uintptr(fd), "")
		cmd.ExtraFiles = append(cmd.ExtraFiles, file)
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "start the supervisor:", err)
		return 1
	}
	for _, file := range cmd.ExtraFiles {
		file.Close()
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case pid == cmd.Process.Pid:
			return status.ExitStatus()
		case err != nil && !errors.Is(err, syscall.EINTR):
			return 1
		}
	}
}

func supervise(stateDir string) error {
	life := os.NewFile(fdLife, "life")
	stepsOut := os.NewFile(fdSteps, "steps")
	defer stepsOut.Close()
	for fd := fdSteps; fd <= fdClaim; fd++ {
		syscall.CloseOnExec(fd)
	}
	var plan Plan
	data, err := os.ReadFile(filepath.Join(stateDir, planFile))
	if err == nil {
		err = json.Unmarshal(data, &plan) //nolint:musttag // both ends are this program
	}
	if err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	if !plan.Share {
		comeFirst()
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	started := make(chan struct{})
	abandoned := watch(life, started, cancel)

	l := newLab(plan)
	err = l.start(ctx, progress.Since(plan.Begun, stepsOut))
	select {
	case <-abandoned:
		l.end()
		return errors.Join(errors.New("the process that started the lab has gone"), removeAll(plan.Location))
	default:
	}
	if err != nil {
		l.end()
		report(life, outcome{Error: err.Error()})
		return errors.Join(err, saveLogs(plan.Location))
	}
	listener, err := listen(plan.Location.Socket())
	if err != nil {
		l.end()
		report(life, outcome{Error: err.Error()})
		return errors.Join(err, saveLogs(plan.Location))
	}
	close(started)
	report(life, outcome{})
	stepsOut.Close()
	return l.serve(listener)
}

// watch closes what it returns, and calls cancel, when the process that started the lab ends before
// the lab has started.
func watch(life *os.File, started <-chan struct{}, cancel func()) <-chan struct{} {
	abandoned := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, life) // nothing is ever sent: it returns at the end
		select {
		case <-started:
		default:
			close(abandoned)
			cancel()
		}
	}()
	return abandoned
}

func report(life *os.File, result outcome) {
	data, err := json.Marshal(result)
	if err == nil {
		_, err = life.Write(data)
	}
	if err := errors.Join(err, life.Close()); err != nil {
		slog.Error("nobody hears that the start is over", "error", err)
	}
}

func listen(socket string) (net.Listener, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, fmt.Errorf("serve the lab's socket: %w", err)
	}
	return listener, os.Chmod(socket, 0o600)
}

// serve answers until the lab is told to end, and ends it.
func (l *lab) serve(listener net.Listener) error {
	server := &http.Server{Handler: l.handler(), ReadHeaderTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var err error
	select {
	case <-l.down:
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		_ = server.Shutdown(ctx) // commands that still run are ended below
	case err = <-served:
	}
	l.end()
	return errors.Join(err, removeAll(l.plan.Location))
}

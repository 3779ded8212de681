// Package launch starts and ends the processes that serve volumes. They must outlive escached: its
// restart, its upgrade, and the end of its pod.
//
// Such a process has a session of its own and a cgroup of its own, because systemd and container
// runtimes kill a service with all of its cgroup. It runs in the namespaces of the host's first process:
// a mount namespace of a pod would keep what the pod had mounted, and its cgroup namespace has no way
// out. Its program lies beside escached's, which an installation puts on the host, also in a pod.
package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/escache/escache-csi/internal/pause"
)

// Program is the name of the program that serves a volume.
const Program = "escache-cache"

// Verb is the hidden subcommand of escached that runs Main.
const Verb = "start-cache"

// Launcher starts processes. It keeps nothing: another escached finds the processes of this one.
type Launcher struct {
	// Binary is the path of the program, on the host.
	Binary string
	// Escached is the path of escached. Empty means this program, even if an upgrade has replaced the file.
	Escached string
	// Logs is the directory of the files NAME.log, to which the processes write.
	Logs string
}

// Beside returns the path of the program beside this one.
func Beside() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("path of this program: %w", err)
	}
	return filepath.Join(filepath.Dir(self), Program), nil
}

// maxLog is the length at which a log becomes NAME.log.1.
const maxLog = 1 << 20

// Start starts the process of a volume with these arguments, and returns when its program runs. Whether
// it can serve is for it to say. The caller names the volume with the first argument: --name NAME.
func (l Launcher) Start(ctx context.Context, name string, args []string) error {
	log, err := l.openLog(name)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	said, status, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	defer func() { _ = said.Close() }()
	//nolint:noctx // it outlives this process
	cmd := exec.Command(cmp.Or(l.Escached, "/proc/self/exe"), append([]string{Verb, name, l.Binary}, args...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.ExtraFiles = []*os.File{status}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if left := status.Close(); err != nil || left != nil {
		return fmt.Errorf("start %s: %w", l.Binary, errors.Join(err, left))
	}
	ended := make(chan struct{})
	go func() { // or it would stay a zombie as long as this process lives
		defer close(ended)
		_ = cmd.Wait()
	}()
	if deadline, ok := ctx.Deadline(); ok {
		_ = said.SetReadDeadline(deadline)
	}
	text, err := io.ReadAll(said) // it ends when the program runs: then the other end is closed
	if err == nil && len(text) > 0 {
		err = errors.New(string(text))
	}
	if err == nil {
		err = l.shown(ctx, cmd.Process.Pid, name, ended)
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", l.Binary, err)
	}
	return nil
}

// shown returns when Running finds the process, or when it has ended. The kernel closes the pipe of Start some
// milliseconds before it shows the program's arguments.
func (l Launcher) shown(ctx context.Context, pid int, name string, ended <-chan struct{}) error {
	for !l.isOf(pid, name) {
		select {
		case <-ended:
			return nil
		default:
		}
		if err := pause.For(ctx, time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

func (l Launcher) openLog(name string) (*os.File, error) {
	path := l.logOf(name)
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		_ = os.Rename(path, path+".1") // the log of one that still runs goes on there
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log of the cache's process: %w", err)
	}
	return log, nil
}

func (l Launcher) logOf(name string) string { return filepath.Join(l.Logs, name+".log") }

// lastWords is how much of a log LastWords returns at most.
const lastWords = 500

// LastWords returns the end of a process's log, for messages about one that has ended.
func (l Launcher) LastWords(name string) string {
	text, err := os.ReadFile(l.logOf(name))
	if err != nil {
		return ""
	}
	if len(text) > lastWords {
		text = text[len(text)-lastWords:]
	}
	return strings.TrimSpace(string(text))
}

// Forget removes the logs of a volume's processes.
func (l Launcher) Forget(name string) error {
	for _, path := range []string{l.logOf(name), l.logOf(name) + ".1"} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove the log of the cache's process: %w", err)
		}
	}
	return nil
}

// killPoll is how often Kill looks whether the process has gone.
const killPoll = 20 * time.Millisecond

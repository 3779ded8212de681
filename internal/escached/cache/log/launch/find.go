package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/listing"
	"github.com/escache/escache-csi/internal/pause"
)

// Running reports whether a process of the volume is there, whether it answers or not.
func (l Launcher) Running(name string) (bool, error) {
	pids, err := l.find(name)
	return len(pids) > 0, err
}

// find returns the processes of a volume: those that run the program with --name NAME as the first
// argument, and were started for it.
func (l Launcher) find(name string) ([]int, error) {
	entries, err := listing.Names("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry)
		if err == nil && l.isOf(pid, name) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isOf is also false for a process that has ended: it has no arguments any more.
func (l Launcher) isOf(pid int, name string) bool {
	return l.hasArguments(pid, name) && isOwn(pid, name)
}

func (l Launcher) hasArguments(pid int, name string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return false
	}
	const least = 3
	args := bytes.Split(line, []byte{0})
	return len(args) >= least && filepath.Base(string(args[0])) == filepath.Base(l.Binary) &&
		string(args[1]) == "--name" && string(args[2]) == name
}

// Kill ends the processes of a volume with SIGKILL, and returns when they are gone. One that is stuck in
// the kernel goes when the kernel lets it.
func (l Launcher) Kill(ctx context.Context, name string) error {
	for {
		pids, err := l.find(name)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := l.killOne(pid, name); err != nil {
				return fmt.Errorf("kill process %d of the cache: %w", pid, err)
			}
		}
		if err := pause.For(ctx, killPoll); err != nil {
			return fmt.Errorf("process %v of the cache was killed and is still there: %w", pids, err)
		}
	}
}

// Gone returns when no process of the volume is there, and removes what was made for it, but not its log.
func (l Launcher) Gone(ctx context.Context, name string) error {
	for {
		running, err := l.Running(name)
		if err != nil {
			return err
		}
		if !running {
			// A process that ends has no arguments any more while the kernel still closes its files. Until then its cgroup is busy.
			if err := leaveCgroup(name); !errors.Is(err, unix.EBUSY) {
				return err
			}
		}
		if err := pause.For(ctx, killPoll); err != nil {
			return fmt.Errorf("the process of the cache does not end: %w", err)
		}
	}
}

// killOne kills a process if it is still the volume's: another one may have its number by now.
func (l Launcher) killOne(pid int, name string) error {
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(handle) }()
	if !l.isOf(pid, name) {
		return nil
	}
	if err := unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

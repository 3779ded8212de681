// Package deviceusers ends the processes that use a block device: those that have the device open, or a
// file of the filesystem on it.
package deviceusers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/pause"
)

// Process is a process that was killed.
type Process struct {
	PID  int
	Name string // as the kernel shortens it
}

func (p Process) String() string { return fmt.Sprintf("%s (%d)", p.Name, p.PID) }

// settle is the time between two looks for processes.
const settle = 10 * time.Millisecond

// Kill sends SIGKILL to every process that uses one of the block devices, or a device that the kernel
// has stacked on it, until it finds none that has not been sent one. It does not wait until they are
// gone: a process that waits for the device's I/O ends with that I/O, and does not learn its result.
//
// It does not find a process that has only mapped a file, or that works on a loop device over a file.
// It spares this process. An error means that there may be such processes.
func Kill(ctx context.Context, paths ...string) ([]Process, error) {
	devices := numbers{}
	for _, path := range paths {
		if err := devices.add(path); err != nil {
			return nil, err
		}
	}
	return devices.kill(ctx)
}

// numbers are the numbers of devices, as stat returns them.
type numbers map[uint64]bool

// add adds a device, and those stacked on it. Without such a device it adds nothing.
func (n numbers) add(path string) error {
	var st unix.Stat_t
	switch err := unix.Stat(path, &st); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	case st.Mode&unix.S_IFMT != unix.S_IFBLK:
		return fmt.Errorf("%s is no block device", path)
	case n[st.Rdev]:
		return nil
	}
	n[st.Rdev] = true
	holders := fmt.Sprintf("/sys/dev/block/%d:%d/holders", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	entries, err := os.ReadDir(holders)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if err := n.add(filepath.Join("/dev", entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (n numbers) kill(ctx context.Context) ([]Process, error) {
	var killed []Process
	done := map[int]bool{} // a PID is not used again while its process waits for the device
	for {
		found, err := n.users(done)
		if err != nil || len(found) == 0 {
			return killed, err
		}
		for _, p := range found {
			sent, err := n.killOne(p.PID)
			if err != nil {
				return killed, fmt.Errorf("kill %s, which uses the device: %w", p, err)
			}
			if sent {
				killed = append(killed, p)
			}
			done[p.PID] = true
		}
		if err := pause.For(ctx, settle); err != nil {
			return killed, err
		}
	}
}

// killOne kills the process, if it is still one that uses a device.
func (n numbers) killOne(pid int) (sent bool, err error) {
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(handle) }()
	// The PID may have become another process's before it was opened.
	if uses, err := n.usedBy(pid); err != nil || !uses {
		return false, err
	}
	err = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	return err == nil, err
}

// users returns the processes that use a device, without those that were looked at.
func (n numbers) users(done map[int]bool) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || done[pid] {
			continue
		}
		uses, err := n.usedBy(pid)
		if err != nil {
			return nil, fmt.Errorf("which files process %d has open is not known: %w", pid, err)
		}
		if uses {
			name, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm"))
			found = append(found, Process{PID: pid, Name: strings.TrimSpace(string(name))})
		}
	}
	return found, nil
}

// usedBy reports whether the process has a device or a file of its filesystem open, in any of its
// threads: they may have files of their own, and the first one may have ended. It asks no
// filesystem's server, so it does not hang.
func (n numbers) usedBy(pid int) (bool, error) {
	threads := filepath.Join("/proc", strconv.Itoa(pid), "task")
	entries, err := os.ReadDir(threads)
	if err != nil {
		return false, unlessGone(err)
	}
	looked := 0
	for _, entry := range entries {
		thread, err := strconv.Atoi(entry.Name())
		if err != nil || looked != 0 && sameFiles(looked, thread) {
			continue
		}
		looked = thread
		if uses, err := n.opened(filepath.Join(threads, entry.Name(), "fd")); uses || err != nil {
			return uses, err
		}
	}
	return false, nil
}

// sameFiles reports whether two threads have the same table of open files. If the kernel does not tell,
// it is taken for another one.
func sameFiles(one, other int) bool {
	const kcmpFiles = 2
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(one), uintptr(other), kcmpFiles, 0, 0, 0)
	return errno == 0 && order == 0
}

// opened reports whether a device or a file of its filesystem is among the open files.
func (n numbers) opened(files string) (bool, error) {
	entries, err := os.ReadDir(files)
	if err != nil {
		return false, unlessGone(err)
	}
	for _, entry := range entries {
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, filepath.Join(files, entry.Name()), unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err = unlessGone(err); err != nil {
			return false, err
		}
		filesystem, device := unix.Mkdev(st.Dev_major, st.Dev_minor), unix.Mkdev(st.Rdev_major, st.Rdev_minor)
		if n[filesystem] || n[device] && uint32(st.Mode)&unix.S_IFMT == unix.S_IFBLK {
			return true, nil
		}
	}
	return false, nil
}

// unlessGone returns nil for an error that means that the process has ended or closed the file.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

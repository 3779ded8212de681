// Package filelock has one process wait for the end of another one, by a file that the other one keeps locked. The kernel
// drops the lock with the last descriptor of the open file, however the process ends. A reboot leaves no lock.
package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Take locks an open file, and fails if another open file of the same path is locked. A child that
// inherits the open file has the lock, too.
func Take(file *os.File) error {
	if err := unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
	return nil
}

// IsFree reports whether nobody has a file locked. What cannot be read counts as locked.
func IsFree(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = file.Close() }()
	lock := unix.Flock_t{Type: unix.F_WRLCK} // asks only: that would not keep another one from it
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_GETLK, &lock)
	return err == nil && lock.Type == unix.F_UNLCK
}

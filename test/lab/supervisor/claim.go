package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/escache/escache-csi/test/lab/labclient"
)

var errTaken = errors.New("the lab is up already")

// claim makes a lab's directory and takes its lock. The lock is held by every process that has the
// file open, so it says whether the lab lives, however the lab may end.
func claim(location labclient.Location) (*os.File, error) {
	for {
		if err := os.MkdirAll(location.StateDir, 0o755); err != nil {
			return nil, fmt.Errorf("lab directory: %w", err)
		}
		dir, err := os.Open(location.StateDir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("lab directory: %w", err)
		}
		if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			dir.Close()
			if errors.Is(err, syscall.EWOULDBLOCK) {
				return nil, errTaken
			}
			return nil, fmt.Errorf("lock %s: %w", location.StateDir, err)
		}
		// The lab that had it may have removed the directory between opening and locking.
		if same(dir, location.StateDir) {
			return dir, nil
		}
		dir.Close()
	}
}

func same(open *os.File, path string) bool {
	a, errA := open.Stat()
	b, errB := os.Stat(path)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// empty removes what an earlier lab has left in the directories.
func empty(location labclient.Location) error {
	entries, err := os.ReadDir(location.StateDir)
	if err != nil {
		return fmt.Errorf("clear the lab's directory: %w", err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(location.StateDir, entry.Name())); err != nil {
			return fmt.Errorf("clear the lab's directory: %w", err)
		}
	}
	if err := errors.Join(os.RemoveAll(location.RunDir), os.RemoveAll(location.FailedDir())); err != nil {
		return fmt.Errorf("clear the lab's directory: %w", err)
	}
	return nil
}

// removeAll removes everything a lab has in the file system, also the directories above where no
// other lab uses them.
func removeAll(location labclient.Location) error {
	err := errors.Join(os.RemoveAll(location.RunDir), os.RemoveAll(location.StateDir))
	for _, dir := range []string{filepath.Dir(location.RunDir), filepath.Dir(location.StateDir)} {
		_ = os.Remove(dir) // fails where another lab is, and should
	}
	return err
}

// saveLogs removes all but the logs, for someone who wants to know why the lab did not come up.
func saveLogs(location labclient.Location) error {
	err := os.RemoveAll(location.RunDir)
	_ = os.Remove(filepath.Dir(location.RunDir)) // fails where another lab is, and should
	var dirs []string
	walked := filepath.WalkDir(location.StateDir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			dirs = append(dirs, path)
		case !strings.HasSuffix(path, ".log"):
			return os.Remove(path)
		}
		return nil
	})
	for i := len(dirs) - 1; i > 0; i-- {
		_ = os.Remove(dirs[i]) // fails where logs are, and should
	}
	return errors.Join(err, walked)
}

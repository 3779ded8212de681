package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/filelock"
)

// A child dies with the process that started it, but not while it hangs in the kernel. What it does
// there may then take effect after the next process has looked at the host. So each run with
// Command.Mark has a file, which names the command, and which the child keeps locked until it has
// ended. The kernel drops the lock with the child's last descriptor. So nobody has to find out
// whether a process is still the same one, and a reboot leaves no lock.

const (
	// inheritPoll is how often Inherit looks whether a child has ended.
	inheritPoll = 50 * time.Millisecond
	// outlivedPoll is how often that is looked for later.
	outlivedPoll = time.Second
)

// Inherit opens the breaker for the children of earlier processes that have not ended, and has x mark
// its own runs. The marks are files in dir. A child that was killed just now gets as long to end as
// any other. Call Inherit once, before Run.
func (x *Exec) Inherit(dir string) error {
	err := os.MkdirAll(dir, 0o700) //nolint:gosec // the directory is escached's own
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	if err != nil {
		return fmt.Errorf("which commands of an earlier process still run is not known: %w", err)
	}
	paths := make([]string, 0, len(entries))
	for _, entry := range entries {
		paths = append(paths, filepath.Join(dir, entry.Name()))
	}
	for start := time.Now(); ; time.Sleep(inheritPoll) {
		if paths = running(paths); len(paths) == 0 || time.Since(start) > killGrace {
			break
		}
	}
	of := map[string][]string{}
	for _, path := range paths {
		volume := volumeOf(path)
		of[volume] = append(of[volume], path)
	}
	for volume, paths := range of {
		x.inherit(volume, paths)
	}
	x.marks = dir
	return nil
}

// inherit opens the breaker of a volume until the children with these files have ended.
func (x *Exec) inherit(volume string, paths []string) {
	done := make(chan error, 1)
	x.breaker.Trip(volume, false, outlived(paths[0]), done)
	go func() {
		for len(paths) > 0 {
			time.Sleep(outlivedPoll)
			paths = running(paths)
		}
		done <- nil
	}()
}

// outlived describes a child by its file.
func outlived(path string) *StuckError {
	stuck := &StuckError{Command: "a command of an earlier process"}
	if info, err := os.Stat(path); err == nil {
		stuck.Since = info.ModTime()
	}
	if text, err := os.ReadFile(path); err == nil {
		command, pid, _ := strings.Cut(string(text), "\n")
		stuck.Command = command
		stuck.Pid, _ = strconv.Atoi(strings.TrimSpace(pid))
	}
	return stuck
}

// running returns the files whose children have not ended, and removes the others.
func running(paths []string) []string {
	return slices.DeleteFunc(paths, func(path string) bool {
		ended := filelock.IsFree(path)
		if ended {
			_ = os.Remove(path)
		}
		return ended
	})
}

// mark is the file of a run; nil if the run is not marked.
type mark struct {
	file *os.File
	path string
}

const (
	// separator ends the name of the volume in the name of a file.
	separator = "."
	// half begins the name of a file that is not locked yet.
	half = ".half-"
)

// mark makes the file of a run. It gets its name when it is locked: a file that has its name and is not
// locked is removed, also by another process that is started by mistake.
func (x *Exec) mark(c Command) (*mark, error) {
	if x.marks == "" || !c.Mark || c.Volume == "" {
		return nil, nil //nolint:nilnil // most runs have none
	}
	file, err := os.CreateTemp(x.marks, half+"*")
	if err != nil {
		return nil, fmt.Errorf("mark a run of %s: %w", c.Name, err)
	}
	path := filepath.Join(x.marks, c.Volume+separator+strings.TrimPrefix(filepath.Base(file.Name()), half))
	// A lock of the open file, which the child inherits; one of the process would stay here.
	err = filelock.Take(file)
	if err == nil {
		_, err = fmt.Fprintln(file, c)
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mark a run of %s: %w", c.Name, err), file.Close(), os.Remove(file.Name()))
	}
	return &mark{file, path}, nil
}

func volumeOf(path string) string {
	name := filepath.Base(path)
	if at := strings.LastIndex(name, separator); at >= 0 {
		return name[:at]
	}
	return name
}

// start starts the child. From then on the child alone has the file.
func (m *mark) start(cmd *exec.Cmd) error {
	if m == nil {
		return cmd.Start()
	}
	cmd.ExtraFiles = []*os.File{m.file}
	err := cmd.Start()
	if err == nil {
		_, _ = fmt.Fprintln(m.file, cmd.Process.Pid) // for people; nothing relies on it
	} else {
		m.ended()
	}
	_ = m.file.Close()
	return err
}

// ended removes the file: the child has ended, or has not started.
func (m *mark) ended() {
	if m != nil {
		_ = os.Remove(m.path)
	}
}

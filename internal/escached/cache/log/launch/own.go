package launch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// isOwn reports whether a process with the arguments of a volume's process is one. Anybody can give a program
// arguments, a pod's user, too. Only root of the host can put it into the volume's cgroup, and become has
// done so before the program has its arguments. Without cgroup v2 it is a program of this name that
// escached's user runs on the host itself, outside of containers.
func isOwn(pid int, name string) bool {
	if hasCgroups() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		return err == nil && isCgroupOf(string(text), name)
	}
	return isProgram(pid) && isUsers(pid) && isOnHost(pid)
}

// hasCgroups reports whether the host has cgroup v2, as joinCgroup needs it.
func hasCgroups() bool {
	_, err := os.Stat(filepath.Join(cgroups, "cgroup.procs"))
	return err == nil
}

// isCgroupOf reports whether a process is in the cgroup of a volume, by its file in /proc. Whoever reads that in a
// container sees the path from the container's own cgroup: as many ".." as lead to the root come first.
func isCgroupOf(text, name string) bool {
	for line := range strings.Lines(text) {
		if path, v2 := strings.CutPrefix(line, "0::"); v2 {
			path = strings.TrimSuffix(path, "\n")
			for strings.HasPrefix(path, "/../") {
				path = strings.TrimPrefix(path, "/..")
			}
			return path == filepath.Join("/", parent, name)
		}
	}
	return false
}

// isProgram goes by the name of the file: an upgrade may have replaced it since.
func isProgram(pid int) bool {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil && strings.TrimSuffix(filepath.Base(path), " (deleted)") == Program
}

// isUsers reports whether a process runs as the user of this one. The owner of its files in /proc does not say that:
// the kernel may give them to root.
func isUsers(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, found := bytes.Cut(text, []byte("\nUid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	own := strconv.Itoa(os.Geteuid())
	for id := range bytes.FieldsSeq(line) { // real, effective, saved, of the filesystem
		found = found && string(id) == own
	}
	return found
}

// isOnHost reports whether a process numbers processes as this one does. escached is in the host's namespace for
// that, also in a pod, and what it starts is, too.
func isOnHost(pid int) bool {
	var own, other unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &own) == nil && unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &other) == nil &&
		own.Dev == other.Dev && own.Ino == other.Ino
}

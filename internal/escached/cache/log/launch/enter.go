package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/resident"
)

const (
	// statusFile is the descriptor on which Main says why it could not start the program.
	statusFile = 3
	// cgroups is where hosts with cgroup v2 have it.
	cgroups = "/sys/fs/cgroup"
	// parent is the cgroup of all processes of caches; each has one of its own in it.
	parent = "escache-cache"
)

// Main becomes the process of a volume: NAME PROGRAM [ARGUMENT...]. It returns only if it cannot.
func Main(args []string) error {
	const least = 2
	if len(args) < least {
		return errors.New("start-cache: needs a name and a program; only escached itself runs this command")
	}
	runtime.LockOSThread() // namespaces are the thread's, and the thread becomes the program
	unix.CloseOnExec(statusFile)
	err := become(args[0], args[1], args[2:])
	_, _ = fmt.Fprint(os.NewFile(statusFile, "status"), err)
	return err
}

func become(name, program string, args []string) error {
	for _, namespace := range []struct {
		name string
		kind int
	}{{"mnt", unix.CLONE_NEWNS}, {"cgroup", unix.CLONE_NEWCGROUP}} {
		if err := enter(namespace.name, namespace.kind); err != nil {
			return fmt.Errorf("enter the host's %s namespace: %w", namespace.name, err)
		}
	}
	if err := joinCgroup(name); err != nil {
		return err
	}
	// The program would start itself again for that, and whoever looked for it in that moment would not find it. What the host does not
	// permit, the program reports.
	_ = resident.Inherit()
	// The kernel must not end it when memory is short: all I/O of the volume would wait. It may be
	// forbidden, as in a container that cannot lower it; then the process is one like others.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	if err := unix.Exec(program, append([]string{program}, args...), os.Environ()); err != nil {
		return fmt.Errorf("run %s (it comes with escached): %w", program, err)
	}
	return nil
}

// enter moves this thread into a namespace of the host's first process, if it is in another one. Who may
// not even look at that process could not enter it: then this process's own namespaces must do. The
// chart's pod may.
func enter(name string, kind int) error {
	path := "/proc/1/ns/" + name
	var own, host unix.Stat_t
	err := errors.Join(unix.Stat("/proc/thread-self/ns/"+name, &own), unix.Stat(path, &host))
	switch {
	case errors.Is(err, unix.EACCES), err == nil && own.Ino == host.Ino:
		return nil
	case err != nil:
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if kind == unix.CLONE_NEWNS { // threads that share a root cannot go apart
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return err
		}
	}
	return unix.Setns(fd, kind)
}

// joinCgroup moves this process into a cgroup of its own. Without cgroup v2 it stays in escached's: if that
// is ended as a whole, so is this process, and the next escached starts it again.
func joinCgroup(name string) error {
	if !hasCgroups() {
		fmt.Fprintf(os.Stderr, "%s is no cgroup v2: a restart of escached may restart this process, too\n", cgroups)
		return nil
	}
	dir := filepath.Join(cgroups, parent, name)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the name is escached's own
		return fmt.Errorf("make a cgroup: %w", err)
	}
	//nolint:gosec // the name is escached's own
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		return fmt.Errorf("join cgroup %s: %w", dir, err)
	}
	return nil
}

// leaveCgroup removes the cgroup of a process that has ended.
func leaveCgroup(name string) error {
	err := os.Remove(filepath.Join(cgroups, parent, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

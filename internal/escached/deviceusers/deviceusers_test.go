package deviceusers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain runs the tests in namespaces of their own, where /proc shows the tests' processes only.
func TestMain(m *testing.M) {
	const inside = "DEVICEUSERS_TEST_INSIDE"
	if os.Getuid() != 0 || os.Getenv(inside) != "" {
		if err := ownProc(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ownProc() error {
	if os.Getuid() != 0 {
		return nil
	}
	return errors.Join(
		unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""),
		unix.Mount("proc", "/proc", "proc", 0, ""),
	)
}

// filesystem mounts a small one, and returns where and its device number.
func filesystem(t *testing.T) (string, numbers) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("mounts a filesystem, which needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	var st, above unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &st), unix.Stat(filepath.Dir(dir), &above)); err != nil || st.Dev == above.Dev {
		t.Fatalf("not mounted: %v", err)
	}
	return dir, numbers{st.Dev: true}
}

// start runs a shell with a script that prints a line when it is ready.
func start(t *testing.T, script string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func killedBy(cmd *exec.Cmd) syscall.Signal {
	_ = cmd.Wait()
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

func TestWhoHasAFileOpenIsKilledAndNobodyElse(t *testing.T) {
	dir, devices := filesystem(t)
	users := map[string]*exec.Cmd{
		"writes a file":     start(t, "exec 3>"+dir+"/a; echo; exec sleep 60"),
		"reads a file":      start(t, "exec 3<"+dir+"/a; echo; exec sleep 60"),
		"has the directory": start(t, "exec 3<"+dir+"; echo; exec sleep 60"),
		"a deleted file":    start(t, "exec 3>"+dir+"/b; rm "+dir+"/b; echo; exec sleep 60"),
		"ignores signals":   start(t, "trap '' TERM INT; exec 3>"+dir+"/c; echo; exec sleep 60"),
	}
	other := start(t, "exec 3>/dev/null; echo; exec sleep 60")
	own, err := os.Create(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	killed, err := devices.kill(t.Context())
	if err := errors.Join(err, own.Close()); err != nil {
		t.Fatal(err)
	}
	for what, cmd := range users {
		named := slices.ContainsFunc(killed, func(p Process) bool { return p.PID == cmd.Process.Pid && p.Name != "" })
		if got := killedBy(cmd); got != unix.SIGKILL || !named {
			t.Errorf("who %s: ended by %q, in the list: %v", what, got, named)
		}
	}
	if len(killed) != len(users) {
		t.Errorf("killed %v", killed)
	}
	if err := other.Process.Signal(unix.SIGTERM); err != nil {
		t.Errorf("another process: %v", err)
	}
	if got := killedBy(other); got != unix.SIGTERM {
		t.Errorf("another process ended by %q", got)
	}
	if again, err := devices.kill(t.Context()); err != nil || len(again) > 0 {
		t.Errorf("once more: %v, %v", again, err)
	}
}

// A process that starts others faster than one look takes must not get away.
func TestWhoComesMeanwhileIsKilledToo(t *testing.T) {
	dir, devices := filesystem(t)
	start(t, `exec 3>`+dir+`/a; echo; while :; do sleep 60 & done`)
	if _, err := devices.kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	const dying = 10 * time.Second
	for begin := time.Now(); ; time.Sleep(settle) {
		left, err := devices.users(nil)
		if err == nil && len(left) == 0 {
			return
		}
		if err != nil || time.Since(begin) > dying {
			t.Fatalf("left: %v, %v", left, err)
		}
	}
}

func TestOnlyBlockDevicesAreTaken(t *testing.T) {
	if killed, err := Kill(t.Context(), "/dev/none-such"); err != nil || len(killed) > 0 {
		t.Errorf("no such device: %v, %v", killed, err)
	}
	for _, path := range []string{"/dev/null", t.TempDir()} {
		if _, err := Kill(t.Context(), path); err == nil {
			t.Errorf("%s passes for a block device", path)
		}
	}
}

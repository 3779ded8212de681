package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/pause"
)

// TestMain also is escached's hidden command, and under another name the program that it starts.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 1 && os.Args[1] == Verb:
		fmt.Fprintln(os.Stderr, Main(os.Args[2:]))
		os.Exit(1)
	case filepath.Base(os.Args[0]) == Program:
		fmt.Println("this is", os.Args[1:])
		if slices.Contains(os.Args, "--ends") {
			os.Exit(0)
		}
		time.Sleep(time.Hour)
	}
	os.Exit(m.Run())
}

func newLauncher(t *testing.T) Launcher {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, Program)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Link(self, binary); err != nil {
		if err := os.Symlink(self, binary); err != nil {
			t.Fatal(err)
		}
	}
	return Launcher{Binary: binary, Logs: dir}
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func running(t *testing.T, l Launcher, name string) bool {
	t.Helper()
	is, err := l.Running(name)
	if err != nil {
		t.Fatal(err)
	}
	return is
}

func TestAProcessHasASessionOfItsOwnAndEndsByItsName(t *testing.T) {
	l, ctx := newLauncher(t), within(t)
	for _, name := range []string{"escache-1", "escache-2"} {
		if err := l.Start(ctx, name, []string{"--name", name, "--disk", "/dev/drbd1"}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Kill(context.Background(), name) })
	}
	pids, err := l.find("escache-1")
	if err != nil || len(pids) != 1 {
		t.Fatalf("found %v, %v", pids, err)
	}
	if session, err := unix.Getsid(pids[0]); err != nil || session != pids[0] {
		t.Errorf("process %d is of session %d, %v", pids[0], session, err)
	}
	if at := cgroupOf(t, pids[0]); at == cgroupOf(t, os.Getpid()) && writable(cgroups) {
		t.Errorf("it is in this process's cgroup %s", at)
	}
	for !strings.Contains(l.LastWords("escache-1"), "--disk /dev/drbd1") {
		if err := pause.For(ctx, killPoll); err != nil {
			t.Fatalf("its log has %q", l.LastWords("escache-1"))
		}
	}
	if err := l.Kill(ctx, "escache-1"); err != nil {
		t.Fatal(err)
	}
	if running(t, l, "escache-1") || !running(t, l, "escache-2") || running(t, l, "escache") {
		t.Error("other processes than the one that was killed are there, or not there")
	}
	if err := l.Gone(ctx, "escache-1"); err != nil {
		t.Error(err)
	}
}

func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// writable reports whether this machine lets its tests make cgroups of version 2.
func writable(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.procs"))
	return err == nil && unix.Access(dir, unix.W_OK) == nil
}

func TestAProgramThatIsNotThereIsAnErrorAndOneThatEndsIsNoticed(t *testing.T) {
	l, ctx := newLauncher(t), within(t)
	missing := Launcher{Binary: filepath.Join(t.TempDir(), Program), Logs: l.Logs}
	if err := missing.Start(ctx, "escache-1", nil); err == nil || !strings.Contains(err.Error(), "it comes with escached") {
		t.Errorf("without the program: %v", err)
	}
	if err := l.Start(ctx, "escache-1", []string{"--name", "escache-1", "--ends"}); err != nil {
		t.Fatal(err)
	}
	if err := l.Gone(ctx, "escache-1"); err != nil || running(t, l, "escache-1") {
		t.Errorf("it has ended, and is there: %v", err)
	}
	if err := l.Forget("escache-1"); err != nil || l.LastWords("escache-1") != "" {
		t.Errorf("its log is still there, %v", err)
	}
}

// Anybody who runs programs on the host can give one these arguments. If it counted, nothing would be started in place of a process that has
// died, and the volume's I/O would wait.
func TestAnotherProgramWithTheArgumentsOfAVolumeDoesNotCount(t *testing.T) {
	l, ctx := newLauncher(t), within(t)
	other := filepath.Join(t.TempDir(), "other")
	if err := os.Link(l.Binary, other); err != nil {
		t.Skip(err)
	}
	for what, path := range map[string]string{"another program": other, "the program, and nobody has started it for the volume": l.Binary} {
		if path == l.Binary && !writable(cgroups) {
			continue // without cgroups of version 2 nothing tells them apart
		}
		cmd := exec.CommandContext(ctx, path)
		cmd.Args = []string{Program, "--name", "escache-1"}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it runs
			t.Fatal(err)
		}
		if running(t, l, "escache-1") {
			t.Errorf("%s counts", what)
		}
		if err := errors.Join(l.Kill(ctx, "escache-1"), l.Gone(ctx, "escache-1")); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid)); err != nil || len(line) == 0 {
			t.Errorf("%s was killed: %v", what, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait()
	}
}

// The kernel shows a program's arguments a moment after the program runs. Whoever looked in between took it for dead.
func TestAProcessIsWaitedForUntilItsArgumentsAreThere(t *testing.T) {
	l, ctx := newLauncher(t), within(t)
	join := ""
	if writable(cgroups) {
		dir := filepath.Join(cgroups, parent, "escache-1")
		join = fmt.Sprintf("mkdir -p %s && echo $$ >%s/cgroup.procs;", dir, dir)
	}
	for script, want := range map[string]bool{
		`sleep 0.2; exec "$0" --name escache-1`: true,
		`sleep 0.2; exit 1`:                     false,
	} {
		cmd := exec.CommandContext(ctx, "sh", "-c", join+script, l.Binary)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait()
		}()
		if err := l.shown(ctx, cmd.Process.Pid, "escache-1", ended); err != nil || running(t, l, "escache-1") != want {
			t.Errorf("%s: after %v it is there: %t, want %t", script, err, !want, want)
		}
		if err := l.Kill(ctx, "escache-1"); err != nil {
			t.Error(err)
		}
	}
}

// The program would start itself again for that, and has no arguments while it does.
func TestAProcessIsStartedAsAnIOFlusher(t *testing.T) {
	if _, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0); err != nil {
		t.Skipf("needs CAP_SYS_RESOURCE: %v; the test of the engine's contract on hosts has it", err)
	}
	l, ctx := newLauncher(t), within(t)
	if err := l.Start(ctx, "escache-1", []string{"--name", "escache-1"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Kill(context.Background(), "escache-1") })
	pids, err := l.find("escache-1")
	if err != nil || len(pids) != 1 {
		t.Fatalf("found %v, %v", pids, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	const afterName, flagsAt, noIO = ") ", 6, 0x80000 // PF_MEMALLOC_NOIO
	_, rest, _ := strings.Cut(string(stat), afterName)
	flags, err := strconv.ParseUint(strings.Fields(rest)[flagsAt], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	if flags&noIO == 0 {
		t.Errorf("it is not one: flags %#x", flags)
	}
}

// A process that ends has no arguments any more while the kernel still closes its files.
func TestGoneWaitsUntilTheProcessHasLeftItsCgroup(t *testing.T) {
	l, ctx := newLauncher(t), within(t)
	if !writable(cgroups) {
		t.Skip("needs cgroup v2; the test of the engine's contract on hosts has it")
	}
	dir := filepath.Join(cgroups, parent, "escache-1")
	ends := exec.CommandContext(ctx, "sleep", "60")
	err := errors.Join(os.MkdirAll(dir, 0o700), ends.Start())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(ends.Process.Pid)), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan error, 1)
	go func() { gone <- l.Gone(ctx, "escache-1") }()
	select {
	case err := <-gone:
		t.Errorf("it does not wait: %v", err)
	case <-time.After(10 * killPoll):
	}
	if err := ends.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = ends.Wait()
	if err := <-gone; err != nil {
		t.Error(err)
	}
}

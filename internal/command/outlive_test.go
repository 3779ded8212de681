package command

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/filelock"
)

// environment variables that make the test's program one that runs a command and is killed.
const (
	marksOfVictim = "COMMAND_TEST_MARKS"
	fileOfVictim  = "COMMAND_TEST_FILE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(marksOfVictim); dir != "" {
		x := NewExec()
		err := x.Inherit(dir)
		if err == nil {
			_, err = x.Run(context.Background(), touch(os.Getenv(fileOfVictim)))
		}
		panic(err) // it is killed before
	}
	os.Exit(m.Run())
}

func touch(path string) Command {
	return Command{Volume: "v1", Name: "touch", Args: []string{path}, Timeout: time.Hour, Mark: true}
}

func inherited(t *testing.T, dir string) *Exec {
	t.Helper()
	x := NewExec()
	must(t, x.Inherit(dir))
	return x
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// stat is what the kernel says of a process, "" if there is none.
func stat(pid string) string {
	text, _ := os.ReadFile("/proc/" + pid + "/stat")
	return string(text)
}

// runUntil runs a command whose time is up when the process whose PID it writes to the file is in the state.
func runUntil(t *testing.T, x *Exec, file, state string, c Command) (pid string, err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.Timeout = time.Hour
	ran := make(chan error, 1)
	go func() {
		_, err := x.Run(ctx, c)
		ran <- err
	}()
	eventually(t, "no process is in state "+state, func() bool {
		text, _ := os.ReadFile(file)
		pid = strings.TrimSpace(string(text))
		return len(ran) > 0 || strings.Contains(stat(pid), state)
	})
	cancel()
	return pid, <-ran
}

// marked returns the marks of the children that run and have their PID in it.
func marked(dir string) []string {
	paths, _ := filepath.Glob(filepath.Join(dir, "*"))
	return slices.DeleteFunc(paths, func(path string) bool {
		return strings.HasPrefix(filepath.Base(path), half) || outlived(path).Pid == 0 || filelock.IsFree(path)
	})
}

func TestTheNextProcessKnowsTheChildrenThatHaveNotEnded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "marks")
	earlier := inherited(t, dir)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	go func() {
		_, _ = earlier.Run(ctx, Command{Volume: "escache-1.a", Name: "sleep", Args: []string{"60"}, Timeout: time.Hour, Mark: true})
	}()
	eventually(t, "nothing is marked", func() bool { return len(marked(dir)) == 1 })
	next := inherited(t, dir)
	stuck := next.Stuck()["escache-1.a"]
	if stuck == nil || len(next.Stuck()) != 1 || stuck.Command != "sleep 60" || stuck.Pid == 0 || time.Since(stuck.Since) > time.Minute {
		t.Fatalf("%+v", next.Stuck())
	}
	if _, err := next.Run(t.Context(), Command{Volume: "escache-1.a", Name: "true"}); !errors.Is(err, ErrStuck) {
		t.Errorf("another change of the volume: %v", err)
	}
	for _, c := range []Command{{Volume: "escache-1.a", Name: "true", Query: true}, {Volume: "escache-1", Name: "true", Mark: true}} {
		if _, err := next.Run(t.Context(), c); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
	kill()
	eventually(t, "the breaker stays open after the child has ended", func() bool { return len(next.Stuck()) == 0 })
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestRunsThatHaveEndedLeaveNoMark(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "marks")
	x := inherited(t, dir)
	for _, c := range []Command{
		{Volume: "v1", Name: "true", Mark: true},
		{Volume: "v1", Name: "false", Mark: true},
		{Volume: "v1", Name: "sleep", Args: []string{"60"}, Timeout: 50 * time.Millisecond, Mark: true},
		{Volume: "v1", Name: "/nonexistent", Mark: true},
		{Volume: "v1", Name: "sh", Args: []string{"-c", "test -z \"$(ls " + dir + ")\""}},
	} {
		_, err := x.Run(t.Context(), c)
		if !c.Mark && err != nil {
			t.Errorf("a run without a mark: %v", err)
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("%v has left %v", c, left)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "v1.1"), []byte("sleep 60\n7\n"), 0o600)) // of a process that was killed
	if next := inherited(t, dir); len(next.Stuck()) > 0 {
		t.Errorf("%+v", next.Stuck())
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestMarksThatCannotBeReadAreAnError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if err := NewExec().Inherit(file); err == nil {
		t.Error("no error")
	}
}

// The kernel does not end a child in D state when the process that started it dies.
func TestAChildThatHangsInTheKernelOutlivesItsProcess(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it freezes a filesystem in a mount namespace of its own")
	}
	dir := t.TempDir()
	image, point, marks := filepath.Join(dir, "image"), filepath.Join(dir, "point"), filepath.Join(dir, "marks")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 16<<20))
	must(t, os.Mkdir(point, 0o700))
	must(t, exec.Command("mkfs.ext4", "-q", image).Run())
	victim := exec.Command("unshare", "--mount", "sh", "-c",
		"mount -o loop "+image+" "+point+" && fsfreeze --freeze "+point+" && exec "+os.Args[0])
	victim.Env = append(os.Environ(), marksOfVictim+"="+marks, fileOfVictim+"="+filepath.Join(point, "x"))
	must(t, victim.Start())
	eventually(t, "nothing is marked", func() bool { return len(marked(marks)) == 1 })
	child := strconv.Itoa(outlived(marked(marks)[0]).Pid)
	unfreeze := func() error {
		return exec.Command("nsenter", "--target", child, "--mount", "fsfreeze", "--unfreeze", point).Run()
	}
	defer func() { _ = unfreeze() }()
	eventually(t, "the child does not hang", func() bool { return strings.Contains(stat(child), "(touch) D") })
	must(t, victim.Process.Kill())
	_ = victim.Wait()
	next := inherited(t, marks)
	stuck := next.Stuck()["v1"]
	if stuck == nil || !strings.HasPrefix(stuck.Command, "touch ") {
		t.Fatalf("%+v", next.Stuck())
	}
	must(t, unfreeze())
	eventually(t, "the breaker stays open after the child has ended", func() bool { return len(next.Stuck()) == 0 })
}

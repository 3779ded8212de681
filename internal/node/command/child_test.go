package command

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestRunTellsExitCodeAndWords(t *testing.T) {
	_, err := NewChildren(NewBreaker()).Run(t.Context(), Command{Name: "sh", Args: []string{"-c", "echo no such device >&2; exit 7"}})
	var exit *ExitError
	if !errors.As(err, &exit) || exit.Code != 7 || !strings.Contains(err.Error(), "no such device") {
		t.Fatalf("got %v, want exit code 7 and the program's words", err)
	}
}

func TestRunKeepsBoundedOutput(t *testing.T) {
	r, err := NewChildren(NewBreaker()).Run(t.Context(), Command{Name: "sh", Args: []string{"-c", "head -c 200000 /dev/zero"}})
	if err != nil || len(r.Stdout) != outputLimit {
		t.Fatalf("kept %d bytes, error %v", len(r.Stdout), err)
	}
}

func TestRunKillsTheWholeGroupWhenTimeIsUp(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	start := time.Now()
	// The grandchild would write the mark if only its parent were killed.
	_, err := NewChildren(NewBreaker()).Run(t.Context(), Command{
		Name: "sh", Args: []string{"-c", "(sleep 1; echo late > " + mark + ") & wait"}, Timeout: 100 * time.Millisecond,
	})
	if !errors.Is(err, ErrTimeout) {
		t.Fatalf("got %v, want ErrTimeout", err)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("took %s", took)
	}
	time.Sleep(1200 * time.Millisecond)
	if _, err := os.Stat(mark); err == nil {
		t.Error("the grandchild went on")
	}
}

func TestBreakerRefusesFurtherCommandsOfTheVolumeOnly(t *testing.T) {
	breaker := NewBreaker()
	breaker.add(Stuck{Volume: "v1", Command: "mount /dev/x /y", PID: 4711, Since: time.Now().Add(-30 * time.Second)})
	runner := NewChildren(breaker)
	_, err := runner.Run(t.Context(), Command{Volume: "v1", Name: "true"})
	if !errors.Is(err, ErrStuck) || !strings.Contains(err.Error(), "30s") || !strings.Contains(err.Error(), "mount /dev/x /y") {
		t.Errorf("v1: got %v", err)
	}
	if _, err := runner.Run(t.Context(), Command{Volume: "v2", Name: "true"}); err != nil {
		t.Errorf("v2: %v", err)
	}
	if got := breaker.Reasons(); len(got) != 1 || !strings.Contains(got[0], "v1") {
		t.Errorf("reasons %q", got)
	}
	breaker.remove(4711)
	if _, err := runner.Run(t.Context(), Command{Volume: "v1", Name: "true"}); err != nil {
		t.Errorf("v1 after the child ended: %v", err)
	}
}

// A frozen filesystem holds its writers in D state, where SIGKILL waits until it is thawed.
func TestStuckChildOpensTheBreakerUntilItEnds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it freezes a filesystem in a mount namespace of its own")
	}
	dir := t.TempDir()
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "point")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 16<<20))
	must(t, os.Mkdir(point, 0o700))
	must(t, exec.Command("mkfs.ext4", "-q", image).Run())
	breaker := NewBreaker()
	started := time.Now()
	_, err := NewChildren(breaker).Run(t.Context(), Command{
		Volume: "v1", Name: "unshare", Timeout: 3 * time.Second,
		Args: []string{"--mount", "sh", "-c", "mount -o loop " + image + " " + point + " && fsfreeze --freeze " + point +
			" && exec touch " + point + "/x"},
	})
	if !errors.Is(err, ErrStuck) || len(breaker.Open()) != 1 {
		t.Fatalf("got %v and %v", err, breaker.Open())
	}
	if took := time.Since(started); took > 3*time.Second+killGrace+10*time.Second { // a busy machine
		t.Errorf("came back only after %s", took)
	}
	pid := strconv.Itoa(breaker.Open()[0].PID)
	must(t, exec.Command("nsenter", "--target", pid, "--mount", "fsfreeze", "--unfreeze", point).Run())
	for deadline := time.Now().Add(10 * time.Second); len(breaker.Open()) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the breaker stays open after the child has ended")
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

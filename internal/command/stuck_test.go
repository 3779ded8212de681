package command

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestRunKeepsBoundedOutput(t *testing.T) {
	r, err := NewExec().Run(t.Context(), Command{Name: "head", Args: []string{"-c", strconv.Itoa(maxOutput + 4096), "/dev/zero"}})
	if err != nil || len(r.Stdout) != maxOutput {
		t.Fatalf("kept %d bytes, error %v", len(r.Stdout), err)
	}
}

// A frozen filesystem holds its writers in D state, where SIGKILL waits until it is thawed.
func TestStuckChildOpensTheBreakerUntilItEnds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it freezes a filesystem in a mount namespace of its own")
	}
	dir := t.TempDir()
	image, point, file := filepath.Join(dir, "image"), filepath.Join(dir, "point"), filepath.Join(dir, "pid")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 16<<20))
	must(t, os.Mkdir(point, 0o700))
	must(t, exec.Command("mkfs.ext4", "-q", image).Run())
	x := NewExec()
	_, err := runUntil(t, x, file, "(touch) D", Command{
		Volume: "v1", Name: "unshare",
		Args: []string{"--mount", "sh", "-c", "mount -o loop " + image + " " + point + " && fsfreeze --freeze " + point +
			" && echo $$ >" + file + " && exec touch " + point + "/x"},
	})
	stuck := x.Stuck()["v1"]
	if !errors.Is(err, ErrStuck) || stuck == nil {
		t.Fatalf("got %v and %v", err, stuck)
	}
	if got := x.Reasons(); len(got) != 1 || !strings.Contains(got[0], "volume v1: unshare") {
		t.Errorf("reasons %q", got)
	}
	if _, err := x.Run(t.Context(), Command{Volume: "v1", Name: "true"}); !errors.Is(err, ErrStuck) {
		t.Errorf("another command of the volume: got %v", err)
	}
	if _, err := x.Run(t.Context(), Command{Volume: "v2", Name: "true"}); err != nil {
		t.Errorf("a command of another volume: %v", err)
	}
	must(t, exec.Command("nsenter", "--target", strconv.Itoa(stuck.Pid), "--mount", "fsfreeze", "--unfreeze", point).Run())
	eventually(t, "the breaker stays open after the child has ended", func() bool { return len(x.Stuck()) == 0 })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

package resident

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
)

const childVariable = "ESCACHE_TEST_RESIDENT"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) == "" {
		os.Exit(m.Run())
	}
	Prepare(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	done := make(chan struct{})
	go func() { // on another thread, which the runtime may have made before
		defer close(done)
		for _, path := range []string{"/proc/self/status", "/proc/self/oom_score_adj"} {
			data, _ := os.ReadFile(path)
			fmt.Printf("%s", data)
		}
		stats, _ := filepath.Glob("/proc/self/task/*/stat")
		for _, path := range stats {
			data, _ := os.ReadFile(path)
			_, rest, _ := strings.Cut(string(data), ") ")
			fmt.Println("flags", strings.Fields(rest)[6])
		}
	}()
	<-done
	os.Exit(0)
}

// What the host does not permit is named, and the process goes on.
func TestEveryThreadIsPrepared(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	var told strings.Builder
	cmd.Stderr = &told
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, told.String())
	}
	text := string(out)
	if locked := !strings.Contains(text, "VmLck:\t       0 kB"); locked == strings.Contains(told.String(), "swapped out") {
		t.Errorf("memory is locked: %v, and it says %s", locked, told.String())
	}
	if spared := strings.Contains(text, "\n-1000\n"); spared == strings.Contains(told.String(), "may be killed") {
		t.Errorf("it is spared: %v, and it says %s", spared, told.String())
	}
	threads := 0
	for line := range strings.Lines(text) {
		flags, ok := strings.CutPrefix(strings.TrimSpace(line), "flags ")
		if !ok {
			continue
		}
		threads++
		n, err := strconv.ParseUint(flags, 10, 64)
		const noIO = 0x00080000 // PF_MEMALLOC_NOIO in linux/sched.h
		if err != nil || n&noIO != 0 == strings.Contains(told.String(), "wait for I/O") {
			t.Errorf("a thread has the flags %#x, and the process says %s; %v", n, told.String(), err)
		}
	}
	if threads < 2 {
		t.Errorf("it has %d threads: the test has tried nothing", threads)
	}
	t.Logf("%d threads; it says %q", threads, told.String())
}

func TestTheLimitGrowsWithTheLog(t *testing.T) {
	t.Cleanup(func() { debug.SetMemoryLimit(1<<63 - 1); debug.SetGCPercent(100) })
	small, large := Limit(1<<30), Limit(1<<40)
	if got := debug.SetMemoryLimit(-1); got != large || large-small < (1<<40)/400 || small > 512<<20 {
		t.Errorf("%d for 1 GiB, %d for 1 TiB, and %d is in effect", small, large, got)
	}
}

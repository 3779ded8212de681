package rbd

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/cephtest"
)

// TestAThousandTimeoutsLeaveNothing: calls that were given up end within librbd, and give back
// threads and memory.
func TestAThousandTimeoutsLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for 1,000 timeouts, about a minute")
	}
	broken := cephtest.Start(t)
	c := open(t, broken, Options{CallTimeout: 100 * time.Millisecond, OpTimeout: time.Second, MaxStuck: 28})
	created(t, c, "before")
	resume := broken.Stall(t)
	var base, half, end usage
	timeouts := 0
	for round := 0; timeouts < 1000; round++ {
		for _, err := range inParallel(28, func(i int) error { return oneOfMany(t, c, round, i) }) {
			if !errors.Is(err, ErrUnavailable) {
				t.Fatalf("got %v", err)
			}
			// On a busy machine Ceph's own timeout, which comes later, may be heard of first.
			if u := (*UnavailableError)(nil); errors.As(err, &u) && strings.Contains(u.Reason, "no answer") {
				timeouts++
			}
		}
		eventually(t, 20*time.Second, func() error { return nothingRuns(c) })
		switch {
		case base.threads == 0 && timeouts >= 100: // after the first ones, pools of threads and of memory have their size
			base = measure()
		case half.threads == 0 && timeouts >= 500:
			half = measure()
		}
	}
	end = measure()
	t.Logf("after 100 timeouts %+v, after 500 %+v, after %d %+v", base, half, timeouts, end)
	if end.threads > base.threads+4 || end.goroutines > base.goroutines+4 {
		t.Errorf("threads or goroutines leak: after 100 timeouts %+v, after %d %+v", base, timeouts, end)
	}
	if grown := end.residentMiB - base.residentMiB; grown > 16 {
		t.Errorf("memory leaks: %d MiB in 900 timeouts", grown)
	}
	resume()
	created(t, c, "after")
}

func oneOfMany(t *testing.T, c *Cluster, round, i int) error {
	ref := ImageRef{"rbd", "before"}
	switch i % 4 {
	case 0:
		return c.CreateImage(t.Context(), spec("rbd", fmt.Sprint("v", round, "-", i)))
	case 1:
		return second(c.ImageInfo(t.Context(), ref))
	case 2:
		return second(c.ImageID(t.Context(), ref))
	default:
		return second(c.Watchers(t.Context(), ref))
	}
}

func nothingRuns(c *Cluster) error {
	if h := c.Health(); h.Running > 0 {
		return fmt.Errorf("health %+v", h)
	}
	return nil
}

type usage struct{ threads, goroutines, residentMiB int }

func measure() usage {
	runtime.GC()
	u := usage{goroutines: runtime.NumGoroutine()}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.SplitSeq(string(status), "\n") {
		var kib int
		fmt.Sscanf(line, "Threads: %d", &u.threads)
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kib); n == 1 {
			u.residentMiB = kib >> 10
		}
	}
	return u
}

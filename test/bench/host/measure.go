package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// syncResult is what `blockcheck bench sync` prints, and what went through DRBD meanwhile.
type syncResult struct {
	Writes    int     `json:"writes"`
	PerSecond float64 `json:"perSecond"`
	P50Micros int64   `json:"p50Micros"`
	P99Micros int64   `json:"p99Micros"`

	Replicated int // writes to the DRBD device, each of which its peer has before it counts
}

func benchSync(r *runner, h *labtest.Host, c candidate, duration time.Duration, writers int) syncResult {
	var result syncResult
	before := writesTo(r, h, c.replicated())
	measure(r, h, &result, "sync", c.device(),
		"--duration", duration.String(), "--span", fmt.Sprint(syncSpan), "--writers", fmt.Sprint(writers))
	result.Replicated = writesTo(r, h, c.replicated()) - before
	return result
}

// writesTo reads the kernel's count of completed writes: Documentation/block/stat.rst.
func writesTo(r *runner, h *labtest.Host, minor int) int {
	const completedWrites = 4
	if minor < 0 {
		return 0
	}
	line := strings.Fields(h.Run(r, "cat", fmt.Sprintf("/sys/block/drbd%d/stat", minor)))
	if len(line) <= completedWrites {
		r.Fatalf("the kernel's statistics of drbd%d have %d fields", minor, len(line))
	}
	n, err := strconv.Atoi(line[completedWrites])
	if err != nil {
		r.Fatalf("%v", err)
	}
	return n
}

// replicatedPerWrite is how many writes went through DRBD for each one that was asked for.
func replicatedPerWrite(s syncResult) float64 {
	return float64(s.Replicated) / float64(max(1, s.Writes))
}

// benchSequential returns bytes a second.
func benchSequential(r *runner, h *labtest.Host, device string) float64 {
	var result struct {
		BytesPerSecond float64 `json:"bytesPerSecond"`
	}
	measure(r, h, &result, "sequential", device, "--bytes", fmt.Sprint(sequentialBytes))
	return result.BytesPerSecond
}

func measure(r *runner, h *labtest.Host, into any, args ...string) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Minute)
	defer cancel()
	out, err := h.Try(ctx, nil, append([]string{"blockcheck", "bench"}, args...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), into)
	}
	if err != nil {
		r.Fatalf("%v", err)
	}
}

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/test/labtest"
)

// syncResult is what `blockcheck bench sync` and `bench files` print, and what went through DRBD meanwhile.
type syncResult struct {
	benchmark.Turn

	replicated int // requests to the DRBD device, each of which its peer has before it counts
}

// work is a way to write.
type work struct {
	name  string
	args  []string // of blockcheck bench
	files bool     // to files on an ext4, not to the device
}

// works are measured in this order: making a filesystem comes after all writes to bare devices.
var works = []work{
	{name: "4 KiB writes to the device, each stable before its writer's next", args: []string{"sync", "--span", fmt.Sprint(syncSpan)}},
	{name: "ext4, 4 KiB written over what was there, and fdatasync", args: []string{"files"}, files: true},
	{name: "ext4, 4 KiB appended, and fdatasync", args: []string{"files", "--append"}, files: true},
}

func benchSync(r *runner, h *labtest.Host, c candidate, w work, duration time.Duration, writers int) syncResult {
	var result syncResult
	before := requestsTo(r, h, c.replicated())
	to := c.device()
	if w.files {
		to = directory(c)
	}
	measure(r, h, &result.Turn, append(slices.Clone(w.args), to, "--duration", duration.String(), "--writers", fmt.Sprint(writers))...)
	result.replicated = requestsTo(r, h, c.replicated()) - before
	return result
}

// directory is where a candidate's filesystem is mounted.
func directory(c candidate) string { return "/mnt/" + strings.ReplaceAll(c.name(), " ", "-") }

// mount makes a filesystem and mounts it until the benchmark ends.
func mount(r *runner, h *labtest.Host, c candidate) {
	dir := directory(c)
	h.Shell(r, fmt.Sprintf("mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 %[1]s &&"+
		" mkdir -p %[2]s && mount %[1]s %[2]s", c.device(), dir))
	r.Cleanup(func() { h.Shell(r, "umount "+dir+" && rmdir "+dir) })
}

// requestsTo reads the kernel's count of completed writes: Documentation/block/stat.rst. DRBD's flushes count as
// writes.
func requestsTo(r *runner, h *labtest.Host, minor int) int {
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

// replicatedPerWrite is how many requests went through DRBD for each write that was asked for.
func replicatedPerWrite(s syncResult) float64 {
	return float64(s.replicated) / float64(max(1, s.Operations))
}

// benchSequential returns bytes a second.
func benchSequential(r *runner, h *labtest.Host, device string) float64 {
	var result benchmark.Turn
	measure(r, h, &result, "sequential", device, "--bytes", fmt.Sprint(sequentialBytes))
	return result.BytesPerSecond()
}

func measure(r *runner, h *labtest.Host, into *benchmark.Turn, args ...string) {
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

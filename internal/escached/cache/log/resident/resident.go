// Package resident keeps a process working when the host has no memory left. The kernel may be waiting for this very process then: it frees
// memory by writing to a volume.
package resident

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

const (
	// base is the memory beside the index: requests under way, what is written back, the program.
	base = 256 << 20
	// indexBytes is what the index takes of a block of the log that is dirty, while it grows.
	indexBytes = 12
	// gcPercent trades some processor time for memory: the heap is small, or an index without pointers.
	gcPercent = 50
)

// Prepare makes this process one that is not swapped out, is not killed for its memory, and whose own requests for memory never wait
// for I/O. The last property is one of threads, which new ones inherit: Prepare starts the program again, with the same arguments, if the
// process was not made of a thread that had called Inherit. What the host does not permit is logged, and left out. Call it first.
func Prepare(log *slog.Logger) {
	for _, step := range []struct {
		without string
		do      func() error
	}{
		{"requests for memory may wait for I/O (it needs CAP_SYS_RESOURCE)", flusher},
		{"its memory may be swapped out (it needs CAP_IPC_LOCK)", lockMemory},
		{"it may be killed when memory is short (it needs CAP_SYS_RESOURCE)", spare},
	} {
		if err := step.do(); err != nil {
			log.Warn("the process is less robust when memory is short", "because", step.without, "error", err)
		}
	}
}

// Inherit gives this thread what Prepare would start a program again for. The program that the thread then becomes inherits it, and so do
// all threads of that one.
func Inherit() error {
	if err := unix.Prctl(unix.PR_SET_IO_FLUSHER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become an I/O flusher: %w", err)
	}
	return nil
}

// flusher says that this process is a part of how memory is freed.
func flusher() error {
	runtime.LockOSThread() // the one that sets it must be the one that starts the program again
	defer runtime.UnlockOSThread()
	is, err := unix.PrctlRetInt(unix.PR_GET_IO_FLUSHER, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("ask whether it is an I/O flusher: %w", err)
	}
	if is == 1 {
		return nil
	}
	if err := Inherit(); err != nil {
		return err
	}
	// Even if an upgrade has replaced the file, this is the running program.
	return fmt.Errorf("start the program again: %w", unix.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// lockMemory keeps in memory what is there, and what will be. Pages that are never used take none.
func lockMemory() error {
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return fmt.Errorf("lock the memory: %w", err)
	}
	return nil
}

func spare() error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0); err != nil {
		return fmt.Errorf("be spared: %w", err)
	}
	return nil
}

// Bound returns the memory that the process of a log of so many bytes needs at most, in bytes.
func Bound(logBytes int64) int64 { return base + logBytes/record.BlockBytes*indexBytes }

// Limit bounds the memory of the Go runtime by Bound, and returns the bound in bytes.
func Limit(logBytes int64) int64 {
	limit := Bound(logBytes)
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(limit)
	return limit
}

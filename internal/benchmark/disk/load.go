// Package disk measures reads and writes of files and block devices. It needs Linux.
package disk

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/internal/benchmark"
)

// Load is work for several workers at the same time.
type Load struct {
	Workers int
	// OperationBytes is how much one operation reads or writes.
	OperationBytes int64
	// Time and Operations bound the load. At least one of them is set.
	Time time.Duration
	// Operations bounds those of all workers together.
	Operations int64
	// Start returns what a worker does. What it prepares is not measured. Operations are numbered
	// from 0, through all workers.
	Start func(worker int) (operation func(n int64) error, err error)
	// Finish makes stable what was written; its time counts. It may be nil.
	Finish func() error
}

// Run measures until the first bound is reached. It fails if an operation does, or if ctx ends before.
func (l Load) Run(ctx context.Context) (benchmark.Turn, error) {
	operations := make([]func(int64) error, l.Workers)
	for i := range operations {
		var err error
		if operations[i], err = l.Start(i); err != nil {
			return benchmark.Turn{}, err
		}
	}
	begin := time.Now()
	running, stop := context.WithCancel(ctx)
	defer stop()
	if l.Time > 0 {
		timer := time.AfterFunc(l.Time, stop)
		defer timer.Stop()
	}
	latencies, failed := make([][]time.Duration, l.Workers), make([]error, l.Workers)
	var next atomic.Int64
	var workers sync.WaitGroup
	for i, operation := range operations {
		workers.Go(func() {
			if latencies[i], failed[i] = l.work(running, &next, operation); failed[i] != nil {
				stop()
			}
		})
	}
	workers.Wait()
	err := errors.Join(errors.Join(failed...), ctx.Err())
	if err == nil && l.Finish != nil {
		err = l.Finish()
	}
	if err != nil {
		return benchmark.Turn{}, err
	}
	return benchmark.Summarise(slices.Concat(latencies...), l.OperationBytes, time.Since(begin)), nil
}

// work repeats an operation. The first one of a worker is always done, so that even the slowest
// volume has a latency.
func (l Load) work(ctx context.Context, next *atomic.Int64, operation func(int64) error) ([]time.Duration, error) {
	var latencies []time.Duration
	for first := true; first || ctx.Err() == nil; first = false {
		n := next.Add(1) - 1
		if l.Operations > 0 && n >= l.Operations {
			break
		}
		start := time.Now()
		if err := operation(n); err != nil {
			return nil, fmt.Errorf("operation %d: %w", n, err)
		}
		latencies = append(latencies, time.Since(start))
	}
	return latencies, nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/test/blockcheck/block"
	"github.com/escache/escache-csi/test/blockcheck/device"
)

// SyncResult is the output of `bench sync`, in JSON.
type SyncResult struct {
	Writes    int     `json:"writes"`
	PerSecond float64 `json:"perSecond"`
	P50Micros int64   `json:"p50Micros"`
	P99Micros int64   `json:"p99Micros"`
	MaxMicros int64   `json:"maxMicros"`
}

// SequentialResult is the output of `bench sequential`, in JSON.
type SequentialResult struct {
	Bytes          int64   `json:"bytes"`
	Seconds        float64 `json:"seconds"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
}

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "time writes"}
	cmd.AddCommand(syncCommand(), filesCommand(), sequentialCommand())
	return cmd
}

func printResult(cmd *cobra.Command, result any, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(cmd.OutOrStdout()).Encode(result)
}

func syncCommand() *cobra.Command {
	var (
		duration time.Duration
		span     int64
		writers  int
	)
	cmd := &cobra.Command{
		Use:   "sync DEVICE",
		Short: "4 KiB writes to a device, each stable before its writer's next: writes a second and their latency; what was on it is lost",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := benchSync(cmd.Context(), args[0], duration, span, writers)
			return printResult(cmd, r, err)
		},
	}
	cmd.Flags().DurationVar(&duration, "duration", 5*time.Second, "how long to write")
	cmd.Flags().Int64Var(&span, "span", 32<<20, "size of the region to write to, in bytes")
	cmd.Flags().IntVar(&writers, "writers", 1, "how many write at the same time")
	return cmd
}

// benchSync writes to a region in an order that no layer below can guess or merge.
func benchSync(ctx context.Context, path string, duration time.Duration, span int64, writers int) (SyncResult, error) {
	dev, err := device.Open(path, device.WriteSync)
	if err != nil {
		return SyncResult{}, err
	}
	defer dev.Close()
	return timeWriters(ctx, duration, writers, func(ctx context.Context, i int) ([]time.Duration, error) {
		return writeSync(ctx, dev, span/block.Size, int64(i), int64(writers))
	})
}

// timeWriters has so many writers write until the duration is over. Each returns the latencies of its writes.
func timeWriters(
	ctx context.Context, duration time.Duration, writers int, write func(ctx context.Context, i int) ([]time.Duration, error),
) (SyncResult, error) {
	begin := time.Now()
	ctx, cancel := context.WithDeadline(ctx, begin.Add(duration))
	defer cancel()
	latencies, failed := make([][]time.Duration, writers), make([]error, writers)
	var running sync.WaitGroup
	for i := range writers {
		running.Go(func() { latencies[i], failed[i] = write(ctx, i) })
	}
	running.Wait()
	elapsed := time.Since(begin)
	if err := errors.Join(failed...); err != nil {
		return SyncResult{}, err
	}
	if err := ctx.Err(); !errors.Is(err, context.DeadlineExceeded) {
		return SyncResult{}, err
	}
	return summarise(slices.Concat(latencies...), elapsed), nil
}

// writeSync writes every step-th block of the order, from the first on, until ctx ends.
func writeSync(ctx context.Context, dev *os.File, blocks, first, step int64) ([]time.Duration, error) {
	// A stride without a common divisor with the number of blocks visits each of them once a round.
	const stride = 7919
	p, err := device.Buffer(block.Size)
	if err != nil {
		return nil, err
	}
	var latencies []time.Duration
	for n := first; ctx.Err() == nil; n += step {
		at := n * stride % blocks * block.Size
		// A counter is enough of a content: to make up 4 KiB costs an emulated host more than to
		// write them.
		p[0], p[1], p[2] = byte(n), byte(n>>8), byte(n>>16)
		start := time.Now()
		if _, err := dev.WriteAt(p, at); err != nil {
			return nil, fmt.Errorf("write at %d: %w", at, err)
		}
		latencies = append(latencies, time.Since(start))
	}
	return latencies, nil
}

func summarise(latencies []time.Duration, elapsed time.Duration) SyncResult {
	if len(latencies) == 0 {
		return SyncResult{}
	}
	slices.Sort(latencies)
	at := func(percent int) int64 { return latencies[(len(latencies)-1)*percent/100].Microseconds() }
	return SyncResult{
		Writes: len(latencies), PerSecond: float64(len(latencies)) / elapsed.Seconds(),
		P50Micros: at(50), P99Micros: at(99), MaxMicros: at(100),
	}
}

func sequentialCommand() *cobra.Command {
	var (
		bytes int64
		size  int
		depth int
	)
	cmd := &cobra.Command{
		Use:   "sequential DEVICE",
		Short: "large writes to a device one after the other, stable at the end: bytes a second; what was on it is lost",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := benchSequential(cmd.Context(), args[0], bytes, size, depth)
			return printResult(cmd, r, err)
		},
	}
	cmd.Flags().Int64Var(&bytes, "bytes", 64<<20, "how much to write")
	cmd.Flags().IntVar(&size, "size", 1<<20, "bytes in one write")
	cmd.Flags().IntVar(&depth, "depth", 4, "writes in flight")
	return cmd
}

func benchSequential(ctx context.Context, path string, bytes int64, size, depth int) (SequentialResult, error) {
	dev, err := device.Open(path, device.Write)
	if err != nil {
		return SequentialResult{}, err
	}
	defer dev.Close()
	offsets := make(chan int64)
	failed := make([]error, depth)
	var writers sync.WaitGroup
	begin := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range depth {
		writers.Go(func() {
			if failed[i] = writeAll(dev, offsets, size, byte(i+1)); failed[i] != nil {
				cancel()
			}
		})
	}
	done := feed(ctx, offsets, bytes, int64(size))
	writers.Wait()
	if err := errors.Join(errors.Join(failed...), ctx.Err()); err != nil {
		return SequentialResult{}, err
	}
	if err := dev.Sync(); err != nil {
		return SequentialResult{}, fmt.Errorf("make it stable: %w", err)
	}
	seconds := time.Since(begin).Seconds()
	return SequentialResult{Bytes: done, Seconds: seconds, BytesPerSecond: float64(done) / seconds}, nil
}

func feed(ctx context.Context, offsets chan<- int64, bytes, size int64) int64 {
	defer close(offsets)
	at := int64(0)
	for ; at+size <= bytes; at += size {
		select {
		case offsets <- at:
		case <-ctx.Done():
			return at
		}
	}
	return at
}

// writeAll fills its writes with one byte that is not zero: a layer that skips zeros would make any
// number.
func writeAll(dev *os.File, offsets <-chan int64, size int, fill byte) error {
	p, err := device.Buffer(size)
	if err != nil {
		return err
	}
	for i := range p {
		p[i] = fill
	}
	for at := range offsets {
		if _, err := dev.WriteAt(p, at); err != nil {
			return fmt.Errorf("write at %d: %w", at, err)
		}
	}
	return nil
}

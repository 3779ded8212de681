package main

import (
	"context"
	"encoding/json"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/benchmark/device"
	"github.com/escache/escache-csi/internal/benchmark/disk"
)

func benchCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "bench", Short: "time writes, and the network"}
	cmd.AddCommand(syncCommand(), filesCommand(), sequentialCommand(), receiveCommand(), sendCommand())
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

func benchSync(ctx context.Context, path string, duration time.Duration, span int64, writers int) (benchmark.Turn, error) {
	dev, err := device.Open(path, device.WriteSync)
	if err != nil {
		return benchmark.Turn{}, err
	}
	defer dev.Close()
	load := disk.SyncWrites(dev, span, writers)
	load.Time = duration
	return load.Run(ctx)
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
	cmd.Flags().IntVar(&size, "size", benchmark.ChunkBytes, "bytes in one write")
	cmd.Flags().IntVar(&depth, "depth", 4, "writes in flight")
	return cmd
}

func benchSequential(ctx context.Context, path string, bytes int64, size, depth int) (benchmark.Turn, error) {
	dev, err := device.Open(path, device.Write)
	if err != nil {
		return benchmark.Turn{}, err
	}
	defer dev.Close()
	return disk.SequentialWrites(dev, bytes, size, depth).Run(ctx)
}

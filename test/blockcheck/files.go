package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/benchmark/disk"
	"github.com/escache/escache-csi/test/blockcheck/block"
)

// fileBlocks is the size of each writer's file if writers overwrite.
const fileBlocks = 256

func filesCommand() *cobra.Command {
	var (
		duration time.Duration
		writers  int
		appends  bool
	)
	cmd := &cobra.Command{
		Use:   "files DIRECTORY",
		Short: "4 KiB writes to files, each followed by fdatasync: writes a second and their latency",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := benchFiles(cmd.Context(), args[0], duration, writers, appends)
			return printResult(cmd, r, err)
		},
	}
	cmd.Flags().DurationVar(&duration, "duration", 5*time.Second, "how long to write")
	cmd.Flags().IntVar(&writers, "writers", 1, "how many write at the same time, each to a file of its own")
	cmd.Flags().BoolVar(&appends, "append", false, "make the files longer, instead of writing over what is there")
	return cmd
}

// benchFiles removes its files at the end.
func benchFiles(ctx context.Context, dir string, duration time.Duration, writers int, appends bool) (result benchmark.Turn, err error) {
	files := make([]*os.File, 0, writers)
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	for i := range writers {
		f, err := newFile(filepath.Join(dir, fmt.Sprintf("blockcheck-%d", i)), appends)
		if err != nil {
			return benchmark.Turn{}, err
		}
		files = append(files, f)
	}
	load := disk.Appends(files)
	if !appends {
		const stride = 101 // has no common divisor with fileBlocks
		load = disk.FileWrites(files, func(n int64) int64 { return n * stride % fileBlocks })
	}
	load.Time = duration
	return load.Run(ctx)
}

func newFile(path string, empty bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil || empty {
		return f, err
	}
	if _, err := f.Write(make([]byte, fileBlocks*block.Size)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, f.Sync()
}

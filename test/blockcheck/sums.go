package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark/device"
	"github.com/escache/escache-csi/test/blockcheck/block"
)

func sumsCommand() *cobra.Command {
	var (
		head  int64
		since uint64
	)
	cmd := &cobra.Command{
		Use:   "sums DEVICE",
		Short: "print a checksum of each block at the beginning of a device, and of each block of a writer wherever it lies",
		Long: "A line is the block's offset, the beginning of its SHA-256, and whose block it is, or 0/0. It is for disks\n" +
			"below a cache, where blocks lie elsewhere than on the device that they were written to.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dev, err := device.Open(args[0], device.Read)
			if err != nil {
				return err
			}
			defer dev.Close()
			return sums(dev, head, since, cmd.OutOrStdout())
		},
	}
	cmd.Flags().Int64Var(&head, "head", 0, "print all of the first so many bytes, whoever wrote them")
	cmd.Flags().Uint64Var(&since, "since", 1, "leave out blocks of writers with an earlier epoch")
	return cmd
}

func sums(dev *os.File, head int64, since uint64, out io.Writer) error {
	size, err := dev.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", dev.Name(), err)
	}
	return eachBlock(dev, 0, size-size%block.Size, func(p []byte, offset int64) error {
		id, err := block.Parse(p, offset)
		written := !errors.Is(err, block.ErrMissing) && id.Epoch >= since
		if !written && offset >= head {
			return nil
		}
		sum := sha256.Sum256(p)
		fmt.Fprintf(out, "%d %x %s\n", offset, sum[:8], id)
		return nil
	})
}

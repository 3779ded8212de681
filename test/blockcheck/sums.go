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
	size -= size % block.Size
	p, err := device.Buffer(readBlocks * block.Size)
	if err != nil {
		return err
	}
	for offset := int64(0); offset < size; {
		n := min(int64(len(p)), size-offset)
		if _, err := dev.ReadAt(p[:n], offset); err != nil {
			return fmt.Errorf("read %d bytes at %d: %w", n, offset, err)
		}
		for i := int64(0); i < n; i += block.Size {
			part := p[i : i+block.Size]
			id, err := block.Parse(part, offset+i)
			written := !errors.Is(err, block.ErrMissing) && id.Epoch >= since
			if !written && offset+i >= head {
				continue
			}
			sum := sha256.Sum256(part)
			fmt.Fprintf(out, "%d %x %s\n", offset+i, sum[:8], id)
		}
		offset += n
	}
	return nil
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark/device"
	"github.com/escache/escache-csi/test/blockcheck/block"
)

func listCommand() *cobra.Command {
	var offset, span int64
	cmd := &cobra.Command{
		Use:   "list DEVICE",
		Short: "print what a region holds, in the form of acknowledgements, also what was never acknowledged",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dev, err := device.Open(args[0], device.Read)
			if err != nil {
				return err
			}
			defer dev.Close()
			return list(dev, offset, span, cmd.OutOrStdout())
		},
	}
	cmd.Flags().Int64Var(&offset, "offset", 0, "where to start, in bytes")
	cmd.Flags().Int64Var(&span, "span", 4<<20, "size of the region, in bytes")
	return cmd
}

func list(dev *os.File, offset, span int64, out io.Writer) error {
	return eachBlock(dev, offset, offset+span, func(p []byte, offset int64) error {
		id, err := block.Parse(p, offset)
		switch {
		case errors.Is(err, block.ErrMissing):
			return nil
		case err != nil:
			return fmt.Errorf("block %s at %d: %w", id, offset, err)
		}
		fmt.Fprintln(out, block.Ack{First: id, Offset: offset, Blocks: 1})
		return nil
	})
}

// eachBlock reads the blocks of a region, and hands each of them over with its offset.
func eachBlock(dev *os.File, offset, end int64, use func(p []byte, offset int64) error) error {
	p, err := device.Buffer(readBlocks * block.Size)
	if err != nil {
		return err
	}
	for offset < end {
		n := min(int64(len(p)), end-offset)
		if _, err := dev.ReadAt(p[:n], offset); err != nil {
			return fmt.Errorf("read %d bytes at %d: %w", n, offset, err)
		}
		for i := int64(0); i < n; i += block.Size {
			if err := use(p[i:i+block.Size], offset+i); err != nil {
				return err
			}
		}
		offset += n
	}
	return nil
}

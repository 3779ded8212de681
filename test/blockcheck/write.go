package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark/device"
	"github.com/escache/escache-csi/test/blockcheck/block"
)

// writeOptions say what to write where.
type writeOptions struct {
	epoch    uint64
	first    uint64        // number of the first block
	offset   int64         // of the region, in bytes
	span     int64         // of the region, in bytes; the writer starts over at its end
	batch    int           // blocks in one write
	bytes    int64         // how much to write in all; 0: until duration is over
	duration time.Duration // 0: until bytes are written
	pause    time.Duration // between two writes
	endOnEOF bool          // end in good order once standard input is closed
}

func writeCommand() *cobra.Command {
	var o writeOptions
	cmd := &cobra.Command{
		Use:   "write DEVICE",
		Short: "write numbered blocks, each write stable before it is acknowledged by a line on standard output",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if o.endOnEOF {
				ctx = untilEOF(ctx, os.Stdin)
			}
			return write(ctx, args[0], o, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&o.epoch, "epoch", 1, "epoch in every block; each writer of a device needs one of its own")
	f.Uint64Var(&o.first, "first", 1, "number of the first block")
	f.Int64Var(&o.offset, "offset", 0, "where to start, in bytes")
	f.Int64Var(&o.span, "span", 0, "size of the region to write to over and over, in bytes; 0: to the end of the device")
	f.IntVar(&o.batch, "batch", 1, "blocks of 4 KiB in one write")
	f.Int64Var(&o.bytes, "bytes", 0, "end after so many bytes")
	f.DurationVar(&o.duration, "duration", 0, "end after so long")
	f.DurationVar(&o.pause, "pause", 0, "wait between two writes")
	f.BoolVar(&o.endOnEOF, "until-eof", false, "end when standard input is closed")
	return cmd
}

// untilEOF is done when in ends.
func untilEOF(ctx context.Context, in io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		io.Copy(io.Discard, in)
	}()
	return ctx
}

// write returns nil when it has written all it was asked to, or was told to end. Each
// acknowledgement goes out by a write(2) of its own: one that stays in a buffer when the host loses
// power was never given.
func write(ctx context.Context, path string, o writeOptions, acks io.Writer) error {
	dev, err := device.Open(path, device.WriteSync)
	if err != nil {
		return err
	}
	defer dev.Close()
	if o.span == 0 {
		size, err := dev.Seek(0, io.SeekEnd)
		if err != nil {
			return fmt.Errorf("size of %s: %w", path, err)
		}
		o.span = size - o.offset
	}
	step := int64(o.batch) * block.Size
	o.span -= o.span % max(step, 1)
	if step <= 0 || o.span <= 0 || o.offset%block.Size != 0 {
		return errors.New("the region holds not even one write, or is not aligned to 4096 bytes")
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	p, err := device.Buffer(int(step))
	if err != nil {
		return err
	}
	id := block.ID{Epoch: o.epoch, Number: o.first}
	for done := int64(0); ctx.Err() == nil && (o.bytes == 0 || done < o.bytes); done += step {
		at := o.offset + done%o.span
		for i := range o.batch {
			part := p[i*block.Size : (i+1)*block.Size]
			block.Fill(part, block.ID{Epoch: id.Epoch, Number: id.Number + uint64(i)}, at+int64(i)*block.Size)
		}
		begin := time.Now()
		if _, err := dev.WriteAt(p, at); err != nil {
			return fmt.Errorf("block %s at %d: %w", id, at, err)
		}
		ack := block.Ack{First: id, Offset: at, Blocks: o.batch, Latency: time.Since(begin)}
		if _, err := fmt.Fprintln(acks, ack); err != nil {
			return fmt.Errorf("nobody takes acknowledgements any more: %w", err)
		}
		id.Number += uint64(o.batch)
		sleep(ctx, o.pause)
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

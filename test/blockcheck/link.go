package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/internal/benchmark/device"
)

const (
	// linkBuffer is the size of one read or write: as large as DRBD's requests of a resync.
	linkBuffer = 1 << 20
	// linkBuffers is how many are between the disk and the network.
	linkBuffers = 4
)

func receiveCommand() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "receive ADDRESS",
		Short: "wait for one `bench send` on ADDRESS (host:port), and take what it sends",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			to := io.Discard
			if path != "" {
				dev, err := device.Open(path, device.Write)
				if err != nil {
					return err
				}
				defer dev.Close()
				to = dev
			}
			var config net.ListenConfig
			l, err := config.Listen(cmd.Context(), "tcp", args[0])
			if err != nil {
				return err
			}
			return receive(cmd.Context(), l, to)
		},
	}
	cmd.Flags().StringVar(&path, "to", "", "write it to this device; what was on it is lost")
	return cmd
}

func sendCommand() *cobra.Command {
	var (
		bytes int64
		path  string
	)
	cmd := &cobra.Command{
		Use:   "send ADDRESS",
		Short: "send to a `bench receive` on ADDRESS (host:port): bytes a second, until the last one has arrived",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var from io.Reader = zeros{}
			if path != "" {
				dev, err := device.Open(path, device.Read)
				if err != nil {
					return err
				}
				defer dev.Close()
				from = dev
			}
			rate, err := send(cmd.Context(), args[0], from, bytes)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%.0f\n", rate)
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&bytes, "bytes", 128<<20, "how much to send, a multiple of 4096")
	cmd.Flags().StringVar(&path, "from", "", "read it from this device")
	return cmd
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// receive takes one connection, and answers at its end that all has arrived.
func receive(ctx context.Context, l net.Listener, to io.Writer) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	l.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if err := pass(ctx, conn, to); err != nil {
		return err
	}
	_, err = conn.Write([]byte{1})
	return err
}

// send returns how many bytes arrive in a second.
func send(ctx context.Context, address string, from io.Reader, bytes int64) (float64, error) {
	to, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return 0, err
	}
	conn, err := net.DialTCP("tcp", nil, to)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	begin := time.Now()
	if err := pass(ctx, io.LimitReader(from, bytes), conn); err != nil {
		return 0, err
	}
	if err := conn.CloseWrite(); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return 0, fmt.Errorf("not all has arrived: %w", err)
	}
	return float64(bytes) / time.Since(begin).Seconds(), nil
}

// pass copies until the end of from. It reads while it writes, in buffers that direct I/O takes.
func pass(ctx context.Context, from io.Reader, to io.Writer) error {
	free, full := make(chan []byte, linkBuffers), make(chan []byte, linkBuffers)
	for range linkBuffers {
		buffer, err := device.Buffer(linkBuffer)
		if err != nil {
			return err
		}
		free <- buffer
	}
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error {
		defer close(full)
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case buffer := <-free:
				n, err := io.ReadFull(from, buffer)
				full <- buffer[:n]
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					return nil
				}
				if err != nil {
					return err
				}
			}
		}
	})
	work.Go(func() error {
		for buffer := range full {
			if _, err := to.Write(buffer); err != nil {
				return err
			}
			free <- buffer[:cap(buffer)]
		}
		return nil
	})
	return work.Wait()
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
)

// linkBuffer is the size of one read or write: as large as DRBD's requests of a resync.
const linkBuffer = 1 << 20

func receiveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "receive ADDRESS",
		Short: "wait for one `bench send` on ADDRESS (host:port), and take what it sends",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var config net.ListenConfig
			l, err := config.Listen(cmd.Context(), "tcp", args[0])
			if err != nil {
				return err
			}
			return receive(cmd.Context(), l)
		},
	}
}

func sendCommand() *cobra.Command {
	var bytes int64
	cmd := &cobra.Command{
		Use:   "send ADDRESS",
		Short: "send to a `bench receive` on ADDRESS (host:port): bytes a second, until the last one has arrived",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rate, err := send(cmd.Context(), args[0], bytes)
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%.0f\n", rate)
			}
			return err
		},
	}
	cmd.Flags().Int64Var(&bytes, "bytes", 128<<20, "how much to send")
	return cmd
}

// receive takes one connection, and answers at its end that all has arrived.
func receive(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	l.Close()
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	buffer := make([]byte, linkBuffer)
	for err == nil {
		_, err = conn.Read(buffer)
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	_, err = conn.Write(buffer[:1])
	return err
}

// send returns how many bytes arrive in a second.
func send(ctx context.Context, address string, bytes int64) (float64, error) {
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
	buffer := make([]byte, linkBuffer)
	for left := bytes; left > 0; {
		n, err := conn.Write(buffer[:min(left, linkBuffer)])
		if err != nil {
			return 0, err
		}
		left -= int64(n)
	}
	if err := conn.CloseWrite(); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, buffer[:1]); err != nil {
		return 0, fmt.Errorf("not all has arrived: %w", err)
	}
	return float64(bytes) / time.Since(begin).Seconds(), nil
}

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Exec runs a command on a host. stdin and stdout may be nil. An exit status other than 0 is an
// error that holds what the command complained about. When ctx ends the command is killed.
type Exec func(ctx context.Context, stdin io.Reader, stdout io.Writer, args ...string) error

// Shell uses devices through sh and dd on a host.
func Shell(exec Exec) Devices { return shell{exec} }

type shell struct{ exec Exec }

const block = 4096

func (d shell) Write(ctx context.Context, device string, offset int64, data []byte) error {
	return d.exec(ctx, bytes.NewReader(data), io.Discard, "dd", "of="+device, fmt.Sprintf("bs=%d", block),
		fmt.Sprintf("seek=%d", offset/block), "iflag=fullblock", "conv=fsync,notrunc")
}

func (d shell) Read(ctx context.Context, device string, offset, length int64) ([]byte, error) {
	var data bytes.Buffer
	err := d.exec(ctx, nil, &data, "dd", "if="+device, fmt.Sprintf("bs=%d", block), fmt.Sprintf("skip=%d", offset/block),
		fmt.Sprintf("count=%d", length/block))
	return data.Bytes(), err
}

func (d shell) Open(ctx context.Context, device string) (io.Closer, error) {
	return hold(ctx, d.exec, "sh", "-c", `exec 3<"$0" && echo ready && cat >/dev/null`, device)
}

func (d shell) Size(ctx context.Context, device string) (int64, error) {
	var out strings.Builder
	const script = `d=$(readlink -f "$0") && [ -b "$d" ] && cat "/sys/class/block/${d##*/}/size"`
	if err := d.exec(ctx, nil, &out, "sh", "-c", script, device); err != nil {
		return 0, fmt.Errorf("%s is no block device: %w", device, err)
	}
	sectors, err := strconv.ParseInt(strings.TrimSpace(out.String()), 10, 64)
	return sectors * 512, err
}

// hold runs a command that prints a line "ready" and then has its effect until its input ends.
func hold(ctx context.Context, exec Exec, args ...string) (io.Closer, error) {
	ctx, cancel := context.WithCancel(ctx)
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := exec(ctx, stdin, stdout, args...)
		_ = stdout.Close()
		_ = stdin.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(output)
	if lines.Scan() && lines.Text() == "ready" {
		go func() { _, _ = io.Copy(io.Discard, output) }()
		return closer(func() error {
			defer cancel()
			_ = input.Close()
			return <-ended
		}), nil
	}
	cancel()
	_ = input.Close()
	_ = output.Close()
	if err := <-ended; err != nil {
		return nil, err
	}
	return nil, errors.New("the command ended without having said that it is ready")
}

// closer makes a function an io.Closer.
type closer func() error

func (c closer) Close() error { return c() }

package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
)

// Streams are a command's; a nil one is empty or discarded.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Run runs a command over a connection, which it closes. It returns the command's exit status; an
// error means that it did not run to its end. When ctx ends first, the command and its children are
// killed.
func Run(ctx context.Context, conn net.Conn, command Command, streams Streams) (int, error) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	code, err := run(conn, command, streams)
	if err != nil && ctx.Err() != nil {
		return 0, fmt.Errorf("%q was ended: %w", command.Args, context.Cause(ctx))
	}
	return code, err
}

func run(conn net.Conn, command Command, streams Streams) (int, error) {
	w := &writer{to: conn}
	if err := w.message(kindCommand, command); err != nil {
		return 0, fmt.Errorf("send the command: %w", err)
	}
	go sendInput(w, streams.In)
	from := bufio.NewReaderSize(conn, maxFrame)
	for {
		kind, data, err := readFrame(from)
		if err != nil {
			return 0, fmt.Errorf("connection to the host was lost while %q ran: %w", command.Args, err)
		}
		switch kind { //nolint:exhaustive // the others are not for this side
		case kindOutput:
			err = writeTo(streams.Out, data)
		case kindErrors:
			err = writeTo(streams.Err, data)
		case kindEnd:
			return ended(data)
		default:
			err = errFrame
		}
		if err != nil {
			return 0, fmt.Errorf("output of %q: %w", command.Args, err)
		}
	}
}

func ended(data []byte) (int, error) {
	var how end
	if err := json.Unmarshal(data, &how); err != nil {
		return 0, fmt.Errorf("%w: %w", errFrame, err)
	}
	if how.Error != "" {
		return how.Code, errors.New(how.Error)
	}
	return how.Code, nil
}

// sendInput ends without a word when the connection does: then the command has ended before it read
// everything, as commands may.
func sendInput(w *writer, in io.Reader) {
	if in != nil {
		if _, err := io.CopyBuffer(stream{w, kindInput}, struct{ io.Reader }{in}, make([]byte, maxFrame)); err != nil {
			return
		}
	}
	_ = w.frame(kindInputEnd, nil) // as above
}

func writeTo(out io.Writer, data []byte) error {
	if out == nil {
		return nil
	}
	_, err := out.Write(data)
	return err
}

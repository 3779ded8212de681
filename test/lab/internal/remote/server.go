package remote

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// callerTime is how long a caller may take to close its connection when it has all of the answer.
const callerTime = time.Minute

// Serve runs the command that a connection asks for, and returns when it has ended.
func Serve(conn net.Conn) error {
	defer conn.Close()
	from := bufio.NewReaderSize(conn, maxFrame)
	kind, data, err := readFrame(from)
	if err != nil {
		return err
	}
	var command Command
	if err := json.Unmarshal(data, &command); kind != kindCommand || err != nil || len(command.Args) == 0 {
		return errFrame
	}
	w := &writer{to: conn}
	cmd := exec.Command(command.Args[0], command.Args[1:]...)
	cmd.Env = append(os.Environ(), command.Env...)
	cmd.Dir = command.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that one kill reaches its children too
	stdout, err := newOutput(stream{w, kindOutput})
	if err != nil {
		return err
	}
	defer stdout.end()
	stderr, err := newOutput(stream{w, kindErrors})
	if err != nil {
		return err
	}
	defer stderr.end()
	cmd.Stdout, cmd.Stderr = stdout.file, stderr.file
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return finish(conn, w, end{Code: 127, Error: err.Error()}, func() { _, _ = io.Copy(io.Discard, from) })
	}
	var once sync.Once
	var group processGroup
	group.id = cmd.Process.Pid
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		receiveInput(from, input)
		once.Do(group.kill) // the caller has gone
	}()
	err = cmd.Wait()
	once.Do(func() {}) // from here on the process id may belong to another
	stdout.end()
	stderr.end()
	return finish(conn, w, howItEnded(cmd, err), func() { <-gone })
}

// finish sends how the command ended and lets the caller close first: input that meets a closed
// connection resets it, and the output that the caller has not taken yet is lost with it.
func finish(conn net.Conn, w *writer, how end, readToEnd func()) error {
	if err := w.message(kindEnd, how); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(callerTime)); err != nil {
		return err
	}
	readToEnd()
	return nil
}

type processGroup struct{ id int }

func (g processGroup) kill() { _ = syscall.Kill(-g.id, syscall.SIGKILL) } // it may have ended meanwhile

// receiveInput feeds the command's input until the connection ends.
func receiveInput(from io.Reader, input io.WriteCloser) {
	defer input.Close()
	for {
		kind, data, err := readFrame(from)
		if err != nil {
			return
		}
		switch kind { //nolint:exhaustive // the others are not for this side
		case kindInput:
			_, _ = input.Write(data) // a command need not read its input
		case kindInputEnd:
			input.Close()
		default:
			return
		}
	}
}

func howItEnded(cmd *exec.Cmd, err error) end {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return end{}
	case !errors.As(err, &exit):
		return end{Code: 126, Error: fmt.Sprintf("%s: %v", cmd.Args[0], err)}
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return end{Code: 128 + int(status.Signal())}
	}
	return end{Code: exit.ExitCode()}
}

package remote

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// connect starts a server for one command and returns the client's end.
func connect(t *testing.T) net.Conn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = Serve(server) // what it met is seen at the client's end
	}()
	t.Cleanup(func() {
		client.Close()
		<-done
	})
	return client
}

func TestACommandGivesBackWhatItPrintedAndHowItEnded(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 64<<10)
	tests := map[string]struct {
		args        []string
		env         []string
		in          string
		out, errors string
		code        int
		fails       bool
	}{
		"output":              {args: []string{"echo", "a b", "c"}, out: "a b c\n"},
		"both streams":        {args: []string{"sh", "-c", "echo out; echo err >&2"}, out: "out\n", errors: "err\n"},
		"status":              {args: []string{"sh", "-c", "exit 7"}, code: 7},
		"signal":              {args: []string{"sh", "-c", "kill -9 $$"}, code: 137},
		"input":               {args: []string{"cat"}, in: "hello", out: "hello"},
		"much input":          {args: []string{"cat"}, in: large, out: large},
		"input not read":      {args: []string{"true"}, in: large},
		"environment":         {args: []string{"sh", "-c", "echo $LAB_X"}, env: []string{"LAB_X=1"}, out: "1\n"},
		"child left behind":   {args: []string{"sh", "-c", "sleep 2 & echo done"}, out: "done\n"},
		"no such program":     {args: []string{"/no/such/program"}, code: 127, fails: true},
		"no shell in between": {args: []string{"echo", "$HOME;*"}, out: "$HOME;*\n"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code, err := Run(t.Context(), connect(t), Command{Args: test.args, Env: test.env},
				Streams{In: strings.NewReader(test.in), Out: &out, Err: &errs})
			if (err != nil) != test.fails || code != test.code {
				t.Errorf("status %d, error %v", code, err)
			}
			if out.String() != test.out || errs.String() != test.errors {
				t.Errorf("printed %.100q and %.100q", out.String(), errs.String())
			}
		})
	}
}

// slow is an end that takes what it is sent with rests.
type slow struct {
	net.Conn

	rest time.Duration
}

func (s slow) Read(data []byte) (int, error) {
	time.Sleep(s.rest)
	return s.Conn.Read(data)
}

func TestACallerThatIsSlowGetsAllOutputOfACommandThatHasEnded(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() { _ = Serve(theirs) }() // what it met is seen at this end
	const length = 200 << 10
	var out bytes.Buffer
	command := Command{Args: []string{"head", "-c", strconv.Itoa(length), "/dev/zero"}}
	if code, err := Run(t.Context(), slow{ours, 400 * time.Millisecond}, command, Streams{Out: &out}); code != 0 || err != nil || out.Len() != length {
		t.Errorf("status %d, error %v, %d of %d bytes", code, err, out.Len(), length)
	}
}

// late is an input that ends when a command that does not read it has long ended.
type late struct{}

func (late) Read([]byte) (int, error) {
	time.Sleep(500 * time.Millisecond)
	return 0, io.EOF
}

func TestInputThatArrivesAfterACommandHasEndedTakesNoOutputAway(t *testing.T) {
	const length = 1 << 20
	var out bytes.Buffer
	command := Command{Args: []string{"head", "-c", strconv.Itoa(length), "/dev/zero"}}
	code, err := Run(t.Context(), slow{connect(t), 100 * time.Millisecond}, command, Streams{In: late{}, Out: &out})
	if code != 0 || err != nil || out.Len() != length {
		t.Errorf("status %d, error %v, %d of %d bytes", code, err, out.Len(), length)
	}
}

// enough is a caller that has enough after one line.
type enough struct {
	bytes.Buffer

	leave func()
}

func (e *enough) Write(data []byte) (int, error) {
	if bytes.HasSuffix(data, []byte("\n")) {
		e.leave()
	}
	return e.Buffer.Write(data)
}

func TestWhenTheCallerLeavesTheCommandAndItsChildrenAreGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, began := &enough{leave: cancel}, time.Now()
	_, err := Run(ctx, connect(t), Command{Args: []string{"sh", "-c", "sleep 100 & echo $!; wait"}}, Streams{Out: out})
	if !errors.Is(err, context.Canceled) || time.Since(began) > time.Minute {
		t.Errorf("error %v after %s", err, time.Since(began))
	}
	child, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if gone(child) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("child %d still runs", child)
}

// gone is also true for a zombie: who reaps it is not this package's matter.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || strings.Contains(string(stat), ") Z ")
}

func TestALostConnectionIsAnError(t *testing.T) {
	ours, theirs := net.Pipe()
	go func() {
		_, _, _ = readFrame(theirs)
		theirs.Close()
	}()
	if _, err := Run(t.Context(), ours, Command{Args: []string{"true"}}, Streams{}); err == nil {
		t.Error("no error")
	}
}

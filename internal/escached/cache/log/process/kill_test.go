package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
)

// childConfig is set in the processes that the test kills: the Config, and where the kernel is played.
const childConfig = "ESCACHE_TEST_PROCESS"

type child struct {
	Config Config
	Kernel string
}

func TestMain(m *testing.M) {
	text := os.Getenv(childConfig)
	if text == "" {
		os.Exit(m.Run())
	}
	var c child
	err := json.Unmarshal([]byte(text), &c) //nolint:musttag // both ends are this test
	if err == nil {
		err = Run(context.Background(), c.Config, remote{c.Kernel}, nil, slog.New(slog.DiscardHandler))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// order is a call of the driver in another process. Its sockets come with it.
type order struct {
	What    string
	Backend string
	Bytes   int64
	Flags   uint64
}

type reply struct {
	Found kernel.Found
	There bool
	Index int
	Error string
	Gone  bool // it is kernel.ErrNotConnected
	Open  bool // it is kernel.ErrOpen
}

// remote is the driver that the test plays, in a child.
type remote struct{ socket string }

func (r remote) call(o order, fds []int) (reply, error) {
	var answer reply
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: r.socket, Net: "unixpacket"})
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	data, _ := json.Marshal(o) //nolint:musttag // both ends are this test
	if _, _, err := conn.WriteMsgUnix(data, unix.UnixRights(fds...), nil); err != nil {
		return answer, err
	}
	p := make([]byte, 4096)
	n, err := conn.Read(p)
	if err == nil {
		err = json.Unmarshal(p[:n], &answer) //nolint:musttag // both ends are this test
	}
	switch {
	case answer.Gone:
		err = kernel.ErrNotConnected
	case answer.Open:
		err = kernel.ErrOpen
	case answer.Error != "":
		err = errors.New(answer.Error)
	}
	return answer, err
}

func (r remote) Find(backend string) (kernel.Found, bool, error) {
	a, err := r.call(order{What: "find", Backend: backend}, nil)
	return a.Found, a.There, err
}

func (r remote) Connect(_ context.Context, d kernel.Device) (int, error) {
	a, err := r.call(order{What: "connect", Backend: d.Backend, Bytes: d.Bytes, Flags: d.Flags}, d.Sockets)
	return a.Index, err
}

func (r remote) Reconnect(_ context.Context, _ int, backend string, sockets []int) error {
	_, err := r.call(order{What: "reconnect", Backend: backend}, sockets)
	return err
}

func (r remote) Resize(_ context.Context, _ int, backend string, n int64) error {
	_, err := r.call(order{What: "resize", Backend: backend, Bytes: n}, nil)
	return err
}

func (r remote) DisconnectUnused(_ context.Context, _ int, backend string) error {
	_, err := r.call(order{What: "disconnect", Backend: backend}, nil)
	return err
}

func (remote) WithoutScheduler(int) error { return nil }

// listen plays the kernel for other processes.
func (k *kernelOf) listen(socket string) {
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
	must(k.t, err)
	k.t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			if err := k.serve(conn); err != nil {
				k.t.Error(err)
			}
			conn.Close()
		}
	}()
}

func (k *kernelOf) serve(conn *net.UnixConn) error {
	data, rights := make([]byte, 4096), make([]byte, 256)
	n, m, _, _, err := conn.ReadMsgUnix(data, rights)
	if n == 0 {
		return nil // it was killed
	}
	var o order
	if err == nil {
		err = json.Unmarshal(data[:n], &o) //nolint:musttag // both ends are this test
	}
	messages, parse := unix.ParseSocketControlMessage(rights[:m])
	if err := errors.Join(err, parse); err != nil {
		return err
	}
	var fds []int
	for _, message := range messages {
		more, err := unix.ParseUnixRights(&message)
		if err != nil {
			return err
		}
		fds = append(fds, more...)
	}
	var a reply
	ctx := context.Background()
	switch o.What {
	case "find":
		a.Found, a.There, err = k.Find(o.Backend)
	case "connect":
		a.Index, err = k.Connect(ctx, kernel.Device{Backend: o.Backend, Bytes: o.Bytes, Flags: o.Flags, Sockets: fds})
	case "reconnect":
		err = k.Reconnect(ctx, index, o.Backend, fds)
	case "resize":
		err = k.Resize(ctx, index, o.Backend, o.Bytes)
	case "disconnect":
		err = k.DisconnectUnused(ctx, index, o.Backend)
	default:
		return fmt.Errorf("%q is no call", o.What)
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	a.Gone, a.Open = errors.Is(err, kernel.ErrNotConnected), errors.Is(err, kernel.ErrOpen)
	if err != nil {
		a.Error = err.Error()
	}
	answer, _ := json.Marshal(a) //nolint:musttag // both ends are this test
	_, _ = conn.Write(answer)    // it may have been killed
	return nil
}

// spawn starts a process, and waits until it serves if it is told to.
func (h *host) spawn(kernelSocket string, wait bool) *exec.Cmd {
	h.t.Helper()
	text, err := json.Marshal(child{h.config, kernelSocket}) //nolint:musttag // both ends are this test
	must(h.t, err)
	cmd := exec.CommandContext(h.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childConfig+"="+string(text))
	cmd.Stderr = os.Stderr
	must(h.t, cmd.Start())
	for wait {
		s, err := h.client.Status(h.t.Context())
		wait = err != nil || s.PID != cmd.Process.Pid
		time.Sleep(time.Millisecond)
	}
	return cmd
}

// Whenever a process is killed, also while it recovers, connects or takes over: writers notice a pause and nothing else.
func TestProcessesAreKilledAndReplacedUnderWriters(t *testing.T) {
	h := newHost(t)
	socket := filepath.Join(filepath.Dir(h.config.Socket), "kernel")
	h.listen(socket)
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	running := h.spawn(socket, true)
	finish := h.writers(4, 5)
	rounds := 30
	if testing.Short() {
		rounds = 8
	}
	for i := range rounds {
		time.Sleep(time.Duration(random.IntN(20)) * time.Millisecond)
		switch i % 3 {
		case 0: // killed at any time, and started again
			must(t, running.Process.Kill())
			_ = running.Wait()
			running = h.spawn(socket, true)
		case 1: // replaced
			next := h.spawn(socket, true)
			must(t, running.Wait())
			running = next
		case 2: // the successor is killed somewhere on its way
			next := h.spawn(socket, false)
			time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
			must(t, errors.Join(next.Process.Kill(), running.Process.Kill()))
			_, _ = next.Wait(), running.Wait()
			running = h.spawn(socket, true)
		}
	}
	written := finish()
	t.Logf("%v writes, and %d connections were replaced", written, h.reconnect)
	if h.connects != 1 {
		t.Errorf("%d devices were made", h.connects)
	}
	must(t, h.client.Stop(t.Context()))
	must(t, running.Wait())
}

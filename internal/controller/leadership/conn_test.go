package leadership

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/escacheclient"
)

// pausing is a request's body, and pauses its process for a minute where it is read.
type pausing struct {
	*strings.Reader

	pause func()
}

func (p pausing) Read(to []byte) (int, error) {
	p.pause()
	return p.Reader.Read(to)
}

func TestARequestThatWasOnItsWayIsNotSentAfterAPause(t *testing.T) {
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil { // without its body it is no request, though its header may come earlier
			served.Add(1)
		}
	}))
	defer server.Close()
	now := time.Unix(1000, 0)
	l := New(&fakeLock{}, 6*time.Second, time.Second, func() time.Time { return now })
	h := &http.Client{Transport: &http.Transport{DialContext: l.Dial}}
	post := func(pause time.Duration) error {
		body := pausing{strings.NewReader("{}"), func() { now = now.Add(pause) }}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
		if err != nil {
			t.Fatal(err)
		}
		r.ContentLength = 2
		answer, err := h.Do(r)
		if err == nil {
			answer.Body.Close()
		}
		return err
	}
	if err := post(0); !errors.Is(err, volumes.ErrUnavailable) {
		t.Errorf("without the lease: %v", err)
	}
	if err := l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Fatal(err)
	}
	if err := post(0); err != nil {
		t.Errorf("leading: %v", err)
	}
	if err := post(time.Minute); !errors.Is(err, volumes.ErrUnavailable) {
		t.Errorf("paused on the way: %v", err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("%d requests arrived, want 1", n)
	}
}

func TestACallToAHostIsNotSentAfterAPause(t *testing.T) {
	var served atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	defer server.Close()
	now, pause := time.Unix(1000, 0), time.Duration(0)
	l := New(&fakeLock{}, 6*time.Second, time.Second, func() time.Time { return now })
	if err := l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := l.Dial(ctx, network, address)
		now = now.Add(pause)
		return conn, err
	}
	remove := func() error {
		host, err := escacheclient.New(escacheclient.Options{BaseURL: server.URL, Dial: dial})
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		return host.DeleteReplica(t.Context(), escache.VolumeRef{Pool: "rbd", Image: "csi-1"})
	}
	if err := remove(); err != nil {
		t.Errorf("leading: %v", err)
	}
	pause = time.Minute
	if err := remove(); !errors.Is(err, volumes.ErrUnavailable) {
		t.Errorf("paused on the way: %v", err)
	}
	if n := served.Load(); n != 1 {
		t.Errorf("%d calls arrived, want 1", n)
	}
}

// fill writes until the kernel takes no more, and returns how much it has taken. Deadlines are of
// no use for that: a busy machine lets one pass before the first byte.
func fill(t *testing.T, conn net.Conn) (sent int64) {
	t.Helper()
	raw, err := conn.(guardedConn).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	for refused := 0; refused < 5; {
		var n int
		var failed error
		if err := raw.Control(func(fd uintptr) { n, failed = unix.Write(int(fd), chunk) }); err != nil {
			t.Fatal(err)
		}
		if failed == nil {
			sent, refused = sent+int64(n), 0
			continue
		}
		refused++
		time.Sleep(10 * time.Millisecond)
	}
	return sent
}

// TestWhatHasNotArrivedIsThrownAway has a host that takes nothing for a while, so that most of what
// is sent waits in this machine's kernel.
func TestWhatHasNotArrivedIsThrownAway(t *testing.T) {
	const margin = 500 * time.Millisecond
	for name, wait := range map[string]func(net.Conn){
		"another may lead":     func(net.Conn) { time.Sleep(4 * margin) },
		"the call is given up": func(c net.Conn) { _ = c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			l := New(&fakeLock{}, time.Minute, margin, time.Now)
			if err := l.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
				t.Fatal(err)
			}
			conn, err := l.Dial(t.Context(), "tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			host, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer host.Close()
			sent := fill(t, conn)
			wait(conn)
			if err := host.SetReadDeadline(time.Now().Add(3 * time.Second)); err != nil { // it may never hear that the other side has gone
				t.Fatal(err)
			}
			arrived, err := io.Copy(io.Discard, host)
			if err == nil || arrived >= sent {
				t.Errorf("%d of %d bytes arrived, and then %v", arrived, sent, err)
			}
		})
	}
}

package nbd_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/nbdtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

const volumeBytes = 64 * record.BlockBytes

var errBroken = errors.New("broken")

// disk is a volume in memory, which notes what it is asked for.
type disk struct {
	mu      sync.Mutex
	data    []byte
	flushes int
	trimmed int
	writes  int           // and zeros
	wait    chan struct{} // closed, or writes and flushes wait for it
	err     error
	refused []string
}

func (d *disk) Refused(r nbd.Request, errno nbd.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = append(d.refused, fmt.Sprintf("%s at %d: %d", r.Command, r.Offset, errno))
}

func newDisk() *disk {
	d := &disk{data: make([]byte, volumeBytes), wait: make(chan struct{})}
	close(d.wait)
	return d
}

func (d *disk) Bytes() int64 { return volumeBytes }

func (d *disk) do(f func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err == nil {
		f()
	}
	return d.err
}

func (d *disk) Read(start uint64, p []byte) error {
	return d.do(func() { copy(p, d.data[start*record.BlockBytes:]) })
}

func (d *disk) Write(start uint64, p []byte) error {
	<-d.wait
	return d.do(func() { copy(d.data[start*record.BlockBytes:], p); d.writes++ })
}

func (d *disk) TryWrite(start uint64, p []byte) bool {
	select {
	case <-d.wait:
		return d.Write(start, p) == nil
	default:
		return false
	}
}

func (d *disk) Zero(start uint64, blocks uint32, trim bool) error {
	return d.do(func() {
		clear(d.data[start*record.BlockBytes:][:blocks*record.BlockBytes])
		d.writes++
		if trim {
			d.trimmed += int(blocks)
		}
	})
}

func (d *disk) Flush() error {
	<-d.wait
	return d.do(func() { d.flushes++ })
}

// did returns what the disk was asked for.
func (d *disk) did() (flushes, trimmed int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flushes, d.trimmed
}

// serve serves a volume. Ended has what Serve returned.
func serve(t *testing.T, v nbd.Volume) (client net.Conn, ended chan error) {
	t.Helper()
	return server(t, v)()
}

// server serves a volume on as many connections as it is called.
func server(t *testing.T, v nbd.Volume) func() (client net.Conn, ended chan error) {
	x := nbd.NewExport(v)
	return func() (client net.Conn, ended chan error) {
		t.Helper()
		client, file, err := nbdtest.Pair()
		must(t, err)
		conn, err := net.FileConn(file)
		must(t, errors.Join(err, file.Close()))
		ended = make(chan error, 1)
		go func() {
			ended <- x.Serve(conn, nil)
			conn.Close()
		}()
		t.Cleanup(func() { client.Close() })
		return client, ended
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEachCommandDoesWhatItSays(t *testing.T) {
	d := newDisk()
	conn, ended := serve(t, d)
	c := nbdtest.NewClient()
	c.Connect(conn)
	ones := bytes.Repeat([]byte{1}, 3*record.BlockBytes)
	must(t, c.Do(nbd.Request{Command: nbd.Write, Offset: 8192, Bytes: 3 * 4096}, ones))
	if n, _ := d.did(); n != 0 {
		t.Error("a plain write was made stable")
	}
	must(t, c.Do(nbd.Request{Command: nbd.Flush}, nil))
	must(t, c.Do(nbd.Request{Command: nbd.Write, Flags: nbd.FUA, Offset: 0, Bytes: 4096}, ones[:4096]))
	if n, _ := d.did(); n != 2 {
		t.Errorf("%d flushes, want one for Flush and one for FUA", n)
	}
	must(t, c.Do(nbd.Request{Command: nbd.Trim, Offset: 8192, Bytes: 4096}, nil))
	must(t, c.Do(nbd.Request{Command: nbd.WriteZeroes, Flags: nbd.NoHole, Offset: 12288, Bytes: 4096}, nil))
	if _, n := d.did(); n != 1 {
		t.Errorf("%d blocks were trimmed: zeros without a hole give no room back", n)
	}
	must(t, c.Do(nbd.Request{Command: nbd.WriteZeroes, Flags: nbd.FUA, Offset: 12288, Bytes: 4096}, nil))
	if flushes, trimmed := d.did(); trimmed != 2 || flushes != 3 {
		t.Errorf("%d blocks were trimmed, %d flushes", trimmed, flushes)
	}
	got := make([]byte, 5*record.BlockBytes)
	must(t, c.Do(nbd.Request{Command: nbd.Read, Bytes: uint32(len(got))}, got))
	for i, want := range []byte{1, 0, 0, 0, 1} {
		if got[i*record.BlockBytes] != want {
			t.Errorf("block %d has %d, want %d", i, got[i*record.BlockBytes], want)
		}
	}
	c.Disconnect()
	must(t, <-ended)
}

func TestRequestsThatCannotBeDone(t *testing.T) {
	d := newDisk()
	conn, _ := serve(t, d)
	c := nbdtest.NewClient()
	c.Connect(conn)
	for name, test := range map[string]struct {
		r    nbd.Request
		want nbd.Errno
	}{
		"an unknown command":               {nbd.Request{Command: 5, Bytes: 4096}, nbd.EINVAL},
		"an unknown flag":                  {nbd.Request{Command: nbd.Trim, Flags: 1 << 9, Bytes: 4096}, nbd.EINVAL},
		"no data":                          {nbd.Request{Command: nbd.Read}, nbd.EINVAL},
		"a part of a block":                {nbd.Request{Command: nbd.Write, Bytes: 512}, nbd.EINVAL},
		"not at a block's border":          {nbd.Request{Command: nbd.Write, Offset: 512, Bytes: 4096}, nbd.EINVAL},
		"a write past the end":             {nbd.Request{Command: nbd.Write, Offset: volumeBytes, Bytes: 4096}, nbd.ENOSPC},
		"a read past the end":              {nbd.Request{Command: nbd.Read, Offset: volumeBytes - 4096, Bytes: 8192}, nbd.EINVAL},
		"an offset that is near overflow":  {nbd.Request{Command: nbd.Trim, Offset: 1<<64 - 4096, Bytes: 8192}, nbd.EINVAL},
		"a read longer than a request may": {nbd.Request{Command: nbd.Read, Bytes: nbd.MaxRequestBytes + 4096}, nbd.EINVAL},
	} {
		err := c.Do(test.r, make([]byte, test.r.Bytes))
		if got := (nbdtest.Error)(0); !errors.As(err, &got) || nbd.Errno(got) != test.want {
			t.Errorf("%s: %v, want %d", name, err, test.want)
		}
		d.mu.Lock()
		want := []string{fmt.Sprintf("%s at %d: %d", test.r.Command, test.r.Offset, test.want)}
		if !slices.Equal(d.refused, want) {
			t.Errorf("%s: the volume was told of %q, not %q", name, d.refused, want)
		}
		d.refused = nil
		d.mu.Unlock()
	}
	d.mu.Lock()
	d.err = errBroken
	d.mu.Unlock()
	for _, command := range []nbd.Command{nbd.Read, nbd.Write, nbd.Flush, nbd.Trim} {
		err := c.Do(nbd.Request{Command: command, Bytes: 4096}, make([]byte, 4096))
		if got := (nbdtest.Error)(0); !errors.As(err, &got) || nbd.Errno(got) != nbd.EIO {
			t.Errorf("command %d of a volume that is broken: %v", command, err)
		}
	}
}

func TestWhoDoesNotSpeakTheProtocolIsNotServed(t *testing.T) {
	long := nbd.Request{Command: nbd.Write, Bytes: nbd.MaxRequestBytes + 4096}.Encode()
	for name, test := range map[string]struct {
		bytes []byte
		want  error
	}{
		"another protocol":         {[]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), nbd.ErrProtocol},
		"a write that is too long": {long, nbd.ErrProtocol},
		"half a request":           {long[:10], nbd.ErrGone},
		"a write without its data": {nbd.Request{Command: nbd.Write, Bytes: 4096}.Encode(), nbd.ErrGone},
		"nothing":                  {nil, nbd.ErrGone},
	} {
		conn, ended := serve(t, newDisk())
		_, err := conn.Write(test.bytes)
		must(t, errors.Join(err, conn.Close()))
		if err := <-ended; !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Reads are served while a flush or a full log keeps writers.
func TestRequestsThatWaitKeepNobodyElse(t *testing.T) {
	d := newDisk()
	d.wait = make(chan struct{})
	conn, _ := serve(t, d)
	c := nbdtest.NewClient()
	c.Connect(conn)
	done := make(chan error)
	for _, r := range []nbd.Request{{Command: nbd.Flush}, {Command: nbd.Write, Bytes: 4096}, {Command: nbd.Write, Flags: nbd.FUA, Bytes: 4096}} {
		go func() { done <- c.Do(r, make([]byte, r.Bytes)) }()
	}
	must(t, c.Do(nbd.Request{Command: nbd.Read, Bytes: 4096}, make([]byte, 4096)))
	select {
	case err := <-done:
		t.Errorf("a request did not wait: %v", err)
	default:
	}
	close(d.wait)
	for range 3 {
		must(t, <-done)
	}
}

// The kernel gives it to the next process.
func TestARequestOfAVolumeThatStopsGetsNoReply(t *testing.T) {
	d := newDisk()
	d.err = nbd.ErrStopped
	conn, ended := serve(t, d)
	c := nbdtest.NewClient()
	c.Connect(conn)
	done := make(chan error)
	go func() { done <- c.Do(nbd.Request{Command: nbd.Write, Bytes: 4096}, bytes.Repeat([]byte{1}, 4096)) }()
	if err := <-ended; !errors.Is(err, nbd.ErrGone) {
		t.Errorf("Serve: %v", err)
	}
	select {
	case err := <-done:
		t.Fatalf("the request was answered: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	next := newDisk()
	conn, _ = serve(t, next)
	c.Connect(conn)
	must(t, <-done)
	got := make([]byte, 4096)
	must(t, next.Read(0, got))
	if got[0] != 1 {
		t.Error("the next process did not get the write")
	}
}

// Each request gets one reply with its cookie, whatever it asks for and in whatever pieces it comes, until the first one that
// makes no sense.
func FuzzServe(f *testing.F) {
	request := nbd.Request{Command: nbd.Write, Cookie: 7, Offset: 4096, Bytes: 4096}.Encode()
	f.Add(append(request, make([]byte, 4096)...))
	f.Add(append(nbd.Request{Command: nbd.Flush}.Encode(), nbd.Request{Command: nbd.Trim, Bytes: 1 << 31}.Encode()...))
	f.Add(nbd.Request{Command: nbd.Read, Bytes: 1<<32 - 4096}.Encode())
	f.Fuzz(func(t *testing.T, stream []byte) {
		want := requestsIn(stream)
		for _, r := range want {
			if len(r) > 1 {
				t.Skip("two requests with one cookie: nobody can tell which one a reply is for")
			}
		}
		conn, ended := serve(t, newDisk())
		go func() {
			_, _ = conn.Write(stream)
			_ = conn.(*net.UnixConn).CloseWrite()
		}()
		for {
			header := make([]byte, 16)
			if _, err := io.ReadFull(conn, header); err != nil {
				break
			}
			cookie, errno := binary.BigEndian.Uint64(header[8:]), binary.BigEndian.Uint32(header[4:])
			r, asked := want[cookie]
			if !asked || len(r) == 0 {
				t.Fatalf("a reply for request %d, which nobody sent", cookie)
			}
			want[cookie] = r[1:]
			if r[0].Command == nbd.Read && errno == 0 {
				if _, err := io.CopyN(io.Discard, conn, int64(r[0].Bytes)); err != nil {
					t.Fatal(err)
				}
			}
		}
		<-ended
		for cookie, r := range want {
			if len(r) > 0 {
				t.Errorf("request %d got no reply", cookie)
			}
		}
	})
}

// requestsIn are the requests in a stream that need a reply, by their cookies.
func requestsIn(stream []byte) map[uint64][]nbd.Request {
	all := map[uint64][]nbd.Request{}
	for len(stream) >= 28 && binary.BigEndian.Uint32(stream) == 0x25609513 {
		r := nbd.Request{
			Command: nbd.Command(binary.BigEndian.Uint16(stream[6:])),
			Cookie:  binary.BigEndian.Uint64(stream[8:]), Bytes: binary.BigEndian.Uint32(stream[24:]),
		}
		stream = stream[28:]
		if r.Command == nbd.Close || r.Command == nbd.Write && (r.Bytes > nbd.MaxRequestBytes || int(r.Bytes) > len(stream)) {
			break
		}
		if r.Command == nbd.Write {
			stream = stream[r.Bytes:]
		}
		all[r.Cookie] = append(all[r.Cookie], r)
	}
	return all
}

// Whatever a request asks for: what may be done is in the volume, and has whole blocks.
func FuzzRequest(f *testing.F) {
	for _, r := range []nbd.Request{{Command: nbd.Write, Offset: volumeBytes, Bytes: 4096}, {Command: nbd.Trim, Offset: 1<<64 - 4096, Bytes: 8192}} {
		f.Add(r.Encode())
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		r, errno, ok := nbd.Decode(header, volumeBytes)
		if !ok {
			return
		}
		if !bytes.Equal(r.Encode(), header) {
			t.Errorf("%x is read as %+v", header, r)
		}
		if errno != nbd.OK || r.Command == nbd.Flush || r.Command == nbd.Close {
			return
		}
		if r.Offset >= volumeBytes || uint64(r.Bytes) > volumeBytes-r.Offset || r.Bytes == 0 || r.Offset%4096 != 0 || r.Bytes%4096 != 0 {
			t.Errorf("%+v may be done", r)
		}
	})
}

package nbd_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/nbdtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// volume is a device of the log, as a process serves it.
type volume struct{ *device.Device }

func (volume) Bytes() int64 { return volumeBytes }

func (volume) Refused(nbd.Request, nbd.Errno) {}

// image is all zeros and takes nothing: what these tests write stays in the log.
type image struct{}

func (image) ReadAt(p []byte, _ int64) (int, error)  { clear(p); return len(p), nil }
func (image) WriteAt(p []byte, _ int64) (int, error) { return 0, errBroken }
func (image) Zero(_, _ int64, _ bool) error          { return errBroken }

func newLog(t *testing.T) *logtest.Disk {
	t.Helper()
	d := logtest.NewDisk(record.Superblocks+4096, rand.New(rand.NewPCG(1, 1)))
	must(t, ring.Format(d, record.Volume{1}, int64(len(d.Stable))))
	return d
}

func open(t *testing.T, d *logtest.Disk) volume {
	t.Helper()
	log, losses, err := ring.Open(d)
	if err != nil || len(losses) > 0 {
		t.Fatalf("open: %v, %v", losses, err)
	}
	return volume{device.New(log, image{})}
}

func first(t *testing.T, v volume, block uint64) byte {
	t.Helper()
	p := ring.AlignedBytes(record.BlockBytes)
	must(t, v.Read(block, p))
	return p[0]
}

// What drivers/block/nbd.c sends, byte by byte and in its order: a header and then each page by itself, several requests before the
// first reply, a flush without a range, handles of a tag and a count, and after a lost connection the same tags with the next count.
func TestWhatTheKernelSends(t *testing.T) {
	disk := newLog(t)
	v := open(t, disk)
	conn, ended := serve(t, v)
	k := kernel{t, conn}
	k.send(nbd.Read, 0, 0, 1, 0, 4096, 0) // looks for partitions
	k.reply(0, 1, 0, 4096)
	k.send(nbd.Trim, 0, 1, 1, 0, volumeBytes, 0) // mkfs
	k.reply(1, 1, 0, 0)
	for tag := range uint32(3) {
		k.send(nbd.Write, 0, tag, 2, uint64(tag)*8192, 8192, byte(tag+1))
	}
	k.replies(map[uint64]bool{2 << 32: true, 2<<32 | 1: true, 2<<32 | 2: true})
	k.send(nbd.Flush, 0, 3, 1, 0, 0, 0)
	k.reply(3, 1, 0, 0)
	k.send(nbd.Write, nbd.FUA, 4, 1, 40960, 4096, 9) // the commit block of a journal, after the flush before it
	k.reply(4, 1, 0, 0)
	stable := open(t, disk) // as after a power loss
	for block, want := range map[uint64]byte{0: 1, 1: 1, 3: 2, 5: 3, 10: 9, 11: 0} {
		if got := first(t, stable, block); got != want {
			t.Errorf("block %d has %d, want %d", block, got, want)
		}
	}
	// The process dies in the middle of a request, and before it has answered another one.
	header := nbd.Request{Command: nbd.Write, Cookie: 1<<32 | 5, Offset: 49152, Bytes: 8192}.Encode()
	k.write(append(header, make([]byte, 4096)...))
	must(t, conn.Close())
	if err := <-ended; !errors.Is(err, nbd.ErrGone) {
		t.Errorf("Serve: %v", err)
	}
	if got := first(t, v, 12); got != 0 {
		t.Errorf("half a request was written: %d", got)
	}
	conn, ended = serve(t, open(t, disk))
	k = kernel{t, conn}
	k.send(nbd.Write, 0, 5, 2, 49152, 8192, 7)
	k.reply(5, 2, 0, 0)
	k.send(nbd.Read, 0, 6, 1, 53248, 4096, 0)
	if data := k.reply(6, 1, 0, 4096); data[0] != 7 {
		t.Errorf("block 13 has %d", data[0])
	}
	k.write(nbd.Request{Command: nbd.Close}.Encode())
	must(t, <-ended)
}

// kernel is one end of a connection.
type kernel struct {
	t    *testing.T
	conn net.Conn
}

func (k kernel) write(p []byte) {
	k.t.Helper()
	_, err := k.conn.Write(p)
	must(k.t, err)
}

func (k kernel) send(c nbd.Command, flags uint16, tag, count uint32, offset uint64, length uint32, fill byte) {
	k.t.Helper()
	p := binary.BigEndian.AppendUint32(nil, 0x25609513)
	p = binary.BigEndian.AppendUint32(p, uint32(flags)<<16|uint32(c))
	p = binary.BigEndian.AppendUint64(p, uint64(count)<<32|uint64(tag))
	p = binary.BigEndian.AppendUint64(p, offset)
	k.write(binary.BigEndian.AppendUint32(p, length))
	for n := uint32(0); c == nbd.Write && n < length; n += 4096 {
		k.write(bytes.Repeat([]byte{fill}, 4096))
	}
}

// reply expects one reply, and returns its data.
func (k kernel) reply(tag, count, errno uint32, length int) []byte {
	k.t.Helper()
	p := make([]byte, 16+length)
	_, err := io.ReadFull(k.conn, p)
	must(k.t, err)
	want := binary.BigEndian.AppendUint32(nil, 0x67446698)
	want = binary.BigEndian.AppendUint32(want, errno)
	want = binary.BigEndian.AppendUint64(want, uint64(count)<<32|uint64(tag))
	if !bytes.Equal(p[:16], want) {
		k.t.Fatalf("the reply is %x, want %x", p[:16], want)
	}
	return p[16:]
}

// replies expects one reply without data for each handle, in any order.
func (k kernel) replies(handles map[uint64]bool) {
	k.t.Helper()
	for len(handles) > 0 {
		p := make([]byte, 16)
		_, err := io.ReadFull(k.conn, p)
		must(k.t, err)
		handle := binary.BigEndian.Uint64(p[8:])
		if !handles[handle] || binary.BigEndian.Uint32(p[4:]) != 0 {
			k.t.Fatalf("the reply is %x", p)
		}
		delete(handles, handle)
	}
}

// The kernel sends it on one of them only.
func TestAFlushCoversWhatWasAnsweredOnAnyConnection(t *testing.T) {
	disk := newLog(t)
	v := open(t, disk)
	var clients [2]*nbdtest.Client
	for i := range clients {
		conn, _ := serve(t, v)
		clients[i] = nbdtest.NewClient()
		clients[i].Connect(conn)
	}
	must(t, clients[0].Do(nbd.Request{Command: nbd.Write, Bytes: 4096}, bytes.Repeat([]byte{1}, 4096)))
	must(t, clients[1].Do(nbd.Request{Command: nbd.Flush}, nil))
	if got := first(t, open(t, disk), 0); got != 1 {
		t.Errorf("after the flush block 0 has %d", got)
	}
}

// Each of many writers reads back what it wrote while connections break, and gets one answer to each request.
func TestConnectionsThatBreakLoseNothing(t *testing.T) {
	v := open(t, newLog(t))
	c := nbdtest.NewClient()
	conn, ended := serve(t, v)
	c.Connect(conn)
	var writers sync.WaitGroup
	for w := range uint64(8) {
		writers.Go(func() {
			for i := range 40 {
				r := nbd.Request{Command: nbd.Write, Offset: (w*8 + uint64(i%4)) * 4096, Bytes: 8192}
				if i%3 == 0 {
					r.Flags = nbd.FUA
				}
				data, got := bytes.Repeat([]byte{byte(i + 1)}, 8192), make([]byte, 8192)
				err := c.Do(r, data)
				err = errors.Join(err, c.Do(nbd.Request{Command: nbd.Read, Offset: r.Offset, Bytes: 8192}, got))
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("block %d has %d, want %d; %v", r.Offset/4096, got[0], data[0], err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for breaks := 0; ; breaks++ {
		select {
		case <-done:
			return
		default:
		}
		if breaks < 20 {
			conn.Close()
			<-ended
			conn, ended = serve(t, v)
			c.Connect(conn)
		}
	}
}

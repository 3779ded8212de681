package nbd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

const (
	// maxWaiting is how many requests of a connection may be under way. The kernel has 128 on each of two, and sends all of them on one if
	// the other is lost.
	maxWaiting = 256
	// maxBytes is the memory of all requests under way. The longest one fits.
	maxBytes = MaxRequestBytes
)

var (
	// ErrGone means that the other end is gone, without having closed the device.
	ErrGone = errors.New("the connection was lost")
	// ErrProtocol means that the other end does not speak the protocol.
	ErrProtocol = errors.New("not a request of the NBD protocol")
	// ErrStopped is for a Volume that stops serving. The request gets no reply: the kernel repeats it on the next connection.
	ErrStopped = errors.New("the volume is no longer served here")
)

// Volume is what is served. All its methods may be called at the same time.
type Volume interface {
	Read(start uint64, p []byte) error
	// Write keeps nothing of p.
	Write(start uint64, p []byte) error
	// TryWrite is Write if that need not wait for anything. Otherwise it does nothing.
	TryWrite(start uint64, p []byte) bool
	Zero(start uint64, blocks uint32, trim bool) error
	Flush() error
	// Bytes is the size now.
	Bytes() int64
	// Refused is told of a request that is answered with an error and does not reach the volume: the kernel asks for nothing
	// that the device does not have, so something is wrong.
	Refused(r Request, errno Errno)
}

// Export is a volume on any number of connections.
type Export struct {
	volume  Volume
	room    *semaphore.Weighted // for data, in bytes
	buffers sync.Pool
	order   order
}

// NewExport returns the export of a volume.
func NewExport(v Volume) *Export { return &Export{volume: v, room: semaphore.NewWeighted(maxBytes)} }

// InterruptedError means that the connection's read deadline was over. All requests that were read are answered.
type InterruptedError struct {
	// Left was read and is not answered: it is the begin of what whoever serves the connection next has to read.
	Left []byte
}

func (*InterruptedError) Error() string { return "serving was interrupted" }

// Serve answers requests until the kernel closes the device, and then returns nil. When it returns, no request is under way
// any more. Whoever closes the connection ends Serve, but for requests that the volume keeps waiting. A read deadline ends it with an
// InterruptedError, with which it can go on, here or in another process.
func (x *Export) Serve(conn net.Conn, left []byte) error {
	s := &server{Export: x, conn: conn, raw: rawOf(conn), slots: make(chan struct{}, maxWaiting)}
	err := s.requests(bufio.NewReaderSize(io.MultiReader(bytes.NewReader(left), conn), 256<<10))
	s.underWay.Wait()
	return err
}

type server struct {
	*Export

	conn     net.Conn
	raw      syscall.RawConn // nil: nobody can tell whether the connection is lost
	slots    chan struct{}
	underWay sync.WaitGroup

	sending sync.Mutex
}

func (s *server) requests(in *bufio.Reader) error {
	header := make([]byte, requestBytes)
	for {
		if n, err := io.ReadFull(in, header); err != nil {
			return broken(in, err, header[:n], nil)
		}
		r, ok := decodeRequest(header)
		if !ok || r.Command == Write && r.Bytes > MaxRequestBytes {
			return fmt.Errorf("%w: %x", ErrProtocol, header) // where the next one begins is not known
		}
		if r.Command == Close {
			return nil
		}
		if err := s.request(in, r, header); err != nil {
			return err
		}
	}
}

// broken is the error of a connection from which a part of a request was read before.
func broken(in *bufio.Reader, err error, header, data []byte) error {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	rest, _ := in.Peek(in.Buffered())
	return &InterruptedError{Left: slices.Concat(header, data, rest)}
}

// request begins with a request. What is done at once saves a goroutine; what may wait must not keep others from being read.
func (s *server) request(in *bufio.Reader, r Request, header []byte) error {
	errno := r.check(uint64(s.volume.Bytes()), record.BlockBytes)
	if errno != OK {
		s.volume.Refused(r, errno)
	}
	var p []byte
	if r.Command == Write || r.Command == Read && errno == OK {
		if p = s.buffer(int(r.Bytes)); p == nil {
			return ErrGone
		}
	}
	if r.Command == Write {
		if n, err := io.ReadFull(in, p); err != nil {
			defer s.free(p)
			return broken(in, err, header, p[:n])
		}
	}
	// What is refused is written nowhere, but its data was on the connection.
	if errno != OK || r.Command == Write && r.Flags&FUA == 0 && s.tryWrite(r, p) {
		s.free(p)
		return s.reply(r, errno, nil)
	}
	if !s.takeSlot() {
		s.free(p)
		return ErrGone
	}
	s.underWay.Go(func() {
		defer func() { <-s.slots }()
		s.finish(r, p)
	})
	return nil
}

// takeSlot waits until another request may be under way. It returns false if the connection is lost before.
func (s *server) takeSlot() bool {
	select {
	case s.slots <- struct{}{}:
		return true
	default:
	}
	for {
		select {
		case s.slots <- struct{}{}:
			return true
		case <-time.After(lookEvery):
			if s.lost() {
				return false
			}
		}
	}
}

func (s *server) tryWrite(r Request, p []byte) bool {
	start, _ := r.blocks()
	return s.order.try(r, func() bool { return !s.lost() && s.volume.TryWrite(start, p) })
}

// finish does a request, and replies.
func (s *server) finish(r Request, p []byte) {
	defer s.free(p)
	err := s.do(r, p)
	if errors.Is(err, ErrStopped) {
		_ = s.conn.Close()
		return
	}
	errno := OK
	if err != nil {
		errno = EIO
	}
	if r.Command != Read || err != nil {
		err = s.reply(r, errno, nil)
	} else {
		err = s.reply(r, errno, p)
	}
	if err != nil {
		_ = s.conn.Close() // the reader notices
	}
}

func (s *server) do(r Request, p []byte) error {
	start, end := r.blocks()
	switch r.Command {
	case Read:
		return s.read(start, p)
	case Write:
		return s.inOrder(r, p, func() error { return s.stable(r, s.volume.Write(start, p)) })
	case Trim, WriteZeroes:
		return s.inOrder(r, nil, func() error { return s.stable(r, s.volume.Zero(start, uint32(end-start), r.Flags&NoHole == 0)) })
	case Flush, Close:
		return s.volume.Flush()
	}
	return nil
}

// stable returns when a write without an error is as stable as it was asked to be. That belongs to the write: it may take long, too.
func (s *server) stable(r Request, err error) error {
	if err == nil && r.Flags&FUA != 0 {
		return s.volume.Flush()
	}
	return err
}

func (s *server) reply(r Request, errno Errno, data []byte) error {
	var header [replyBytes]byte
	encodeReply(header[:], r.Cookie, errno)
	s.sending.Lock()
	defer s.sending.Unlock()
	parts := net.Buffers{header[:], data}
	if data == nil {
		parts = parts[:1]
	}
	if _, err := parts.WriteTo(s.conn); err != nil {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return nil
}

// buffer waits until there is room, and returns memory as O_DIRECT wants it. It returns nil if the connection is lost before.
func (s *server) buffer(n int) []byte {
	for taken := s.room.TryAcquire(int64(n)); !taken; {
		ctx, cancel := context.WithTimeout(context.Background(), lookEvery)
		taken = s.room.Acquire(ctx, int64(n)) == nil
		cancel()
		if !taken && s.lost() {
			return nil
		}
	}
	if p, ok := s.buffers.Get().(*[]byte); ok && cap(*p) >= n {
		return (*p)[:n]
	}
	return ring.AlignedBytes(max(n, 128<<10))[:n]
}

func (s *server) free(p []byte) {
	if p != nil {
		s.room.Release(int64(len(p)))
		s.buffers.Put(&p)
	}
}

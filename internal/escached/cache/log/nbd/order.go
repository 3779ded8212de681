package nbd

import (
	"bytes"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// lookEvery is how often whoever waits looks whether its connection is still there.
const lookEvery = time.Second

// order keeps writes that overlap from being done at the same time. The kernel repeats a request on another connection when the first
// one takes long. The repetition must not be answered before the first one is done: then the user could write again, and the first one
// would come after that. No user is slowed down by it: who writes the same block twice at a time does not know which one counts.
//
// A repetition has its answer from the first one, however long that takes. If it were done again it would take as long again, and would be
// repeated as well: while Ceph is slower than the kernel is patient, nobody would have an answer.
type order struct {
	mu       sync.Mutex
	underWay []*span    // few
	reads    []*reading // few
}

// span is a write that is under way.
type span struct {
	start, end uint64
	request    Request
	data       []byte

	done chan struct{}
	// ok is set before done is closed.
	ok bool
}

// begin returns the span of a write, which begins now, or nil and a write that must be done before. In that case it says whether that one
// does the same: no other write comes in between, so when that one is done, so is this one.
func (o *order) begin(r Request, data []byte) (own, before *span, same bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	start, end := r.blocks()
	if other := o.other(start, end); other != nil {
		return nil, other, other.does(r, data)
	}
	own = &span{start: start, end: end, request: r, data: data, done: make(chan struct{})}
	o.underWay = append(o.underWay, own)
	o.outdate(start, end)
	return own, nil, false
}

// does reports whether a write does what a request asks for.
func (s *span) does(r Request, data []byte) bool {
	own := s.request
	own.Cookie = r.Cookie
	return own == r && bytes.Equal(s.data, data)
}

func (o *order) end(own *span, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.underWay = slices.DeleteFunc(o.underWay, func(s *span) bool { return s == own })
	own.ok = ok
	close(own.done)
}

// try does a write that waits for nothing, unless one that overlaps is under way.
func (o *order) try(r Request, write func() bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	start, end := r.blocks()
	if o.other(start, end) != nil {
		return false
	}
	o.outdate(start, end)
	return write()
}

func (o *order) other(start, end uint64) *span {
	for _, s := range o.underWay {
		if start < s.end && s.start < end {
			return s
		}
	}
	return nil
}

// inOrder does a write when no other one that overlaps is under way, or leaves it to one that does the same. It returns ErrStopped, and has
// done nothing, if the connection is lost by then: what is left on it, the kernel has repeated on another one, or will. That is asked after
// the write has taken its place, so that the repetition comes after it in any case.
func (s *server) inOrder(r Request, data []byte, write func() error) error {
	for {
		own, before, same := s.order.begin(r, data)
		if own != nil {
			return s.inSpan(own, write)
		}
		if !s.waitFor(before.done) {
			return ErrStopped
		}
		if same && before.ok {
			return nil
		}
	}
}

func (s *server) inSpan(own *span, write func() error) error {
	ok := false
	defer func() { s.order.end(own, ok) }()
	if s.lost() {
		return ErrStopped
	}
	err := write()
	ok = err == nil
	return err
}

// waitFor waits until something is done. It returns false if the connection is lost before.
func (s *server) waitFor(done <-chan struct{}) bool {
	for {
		select {
		case <-done:
			return true
		case <-time.After(lookEvery):
			if s.lost() {
				return false
			}
		}
	}
}

// lost reports whether the other end has given the connection up. Closing its sending half is no sign of that.
func (s *server) lost() bool {
	if s.raw == nil {
		return false
	}
	var events int16
	err := s.raw.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		for {
			if _, err := unix.Poll(poll, 0); err != unix.EINTR { // an errno is never wrapped here
				break
			}
		}
		events = poll[0].Revents
	})
	return err != nil || events&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}

// rawOf returns a connection's descriptor, or nil if it has none.
func rawOf(conn any) syscall.RawConn {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// blocks are those of a request: from start on, up to but not with end.
func (r Request) blocks() (start, end uint64) {
	start = r.Offset / record.BlockBytes
	return start, start + uint64(r.Bytes/record.BlockBytes)
}

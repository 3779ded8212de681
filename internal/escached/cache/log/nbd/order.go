package nbd

import (
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often whoever waits looks whether its connection is still there.
const lookEvery = time.Second

// order keeps writes that overlap from being done at the same time. The kernel repeats a request on another connection when the first
// one takes long. The repetition must not be answered before the first one is done: then the user could write again, and the first one
// would come after that. No user is slowed down by it: who writes the same block twice at a time does not know which one counts.
type order struct {
	mu       sync.Mutex
	underWay []*span // few
}

type span struct {
	start, end uint64
	done       chan struct{}
}

// begin returns the span of a write, which begins now, or nil and a write that must be done before.
func (o *order) begin(start, blocks uint64) (own, before *span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if other := o.other(start, blocks); other != nil {
		return nil, other
	}
	own = &span{start: start, end: start + blocks, done: make(chan struct{})}
	o.underWay = append(o.underWay, own)
	return own, nil
}

func (o *order) end(own *span) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.underWay = slices.DeleteFunc(o.underWay, func(s *span) bool { return s == own })
	close(own.done)
}

// try does a write that waits for nothing, unless one that overlaps is under way.
func (o *order) try(start, blocks uint64, write func() bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.other(start, blocks) == nil && write()
}

func (o *order) other(start, blocks uint64) *span {
	for _, s := range o.underWay {
		if start < s.end && s.start < start+blocks {
			return s
		}
	}
	return nil
}

// inOrder does a write when no other one that overlaps is under way. It returns ErrStopped, and has done nothing, if the connection
// is lost by then: what is left on it, the kernel has repeated on another one, or will. That is asked after the write has taken its place,
// so that the repetition comes after it in any case.
func (s *server) inOrder(start, blocks uint64, write func() error) error {
	for {
		own, before := s.order.begin(start, blocks)
		if own != nil {
			defer s.order.end(own)
			if s.lost() {
				return ErrStopped
			}
			return write()
		}
		for waiting := true; waiting; {
			select {
			case <-before.done:
				waiting = false
			case <-time.After(lookEvery):
				if s.lost() {
					return ErrStopped
				}
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

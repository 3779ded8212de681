package nbd

import (
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// reading is a read that is under way. Another one of the same range waits for its answer.
type reading struct {
	start, end uint64
	// current is true as long as nobody has begun a write there that the read may not have seen. Then nobody joins it any more: who has an
	// answer to the write must see it.
	current bool
	joined  []*joined
}

// joined is a read that waits for another one.
type joined struct {
	into []byte
	done chan struct{}
	// ok is set before done is closed: into is filled.
	ok bool
}

// beginRead returns a read, which begins now, or nil and a place among those who wait for one that is under way.
func (o *order) beginRead(start uint64, p []byte) (own *reading, at *joined) {
	o.mu.Lock()
	defer o.mu.Unlock()
	end := start + uint64(len(p)/record.BlockBytes)
	for _, r := range o.reads {
		if r.current && r.start == start && r.end == end {
			at = &joined{into: p, done: make(chan struct{})}
			r.joined = append(r.joined, at)
			return nil, at
		}
	}
	own = &reading{start: start, end: end, current: o.other(start, end) == nil}
	o.reads = append(o.reads, own)
	return own, nil
}

// endRead gives all who have joined a read what it has read.
func (o *order) endRead(own *reading, p []byte, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.reads = slices.DeleteFunc(o.reads, func(r *reading) bool { return r == own })
	for _, j := range own.joined {
		if j.ok = ok; ok {
			copy(j.into, p)
		}
		close(j.done)
	}
}

// leave takes one out who has joined a read. Its memory is its own again.
func (o *order) leave(gone *joined) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range o.reads {
		r.joined = slices.DeleteFunc(r.joined, func(j *joined) bool { return j == gone })
	}
}

// outdate is called before a write begins. The caller holds mu.
func (o *order) outdate(start, end uint64) {
	for _, r := range o.reads {
		if start < r.end && r.start < end {
			r.current = false
		}
	}
}

// read does a read, or waits for one of the same range that is under way. It returns ErrStopped if the connection is lost meanwhile.
func (s *server) read(start uint64, p []byte) error {
	for {
		own, at := s.order.beginRead(start, p)
		if own != nil {
			err := s.volume.Read(start, p)
			s.order.endRead(own, p, err == nil)
			return err
		}
		if !s.waitFor(at.done) {
			s.order.leave(at)
			return ErrStopped
		}
		if at.ok {
			return nil
		}
	}
}

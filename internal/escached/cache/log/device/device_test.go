package device

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

func TestAWriteIsStableAfterFlushAndNotBefore(t *testing.T) {
	d, disk, origin := start(t)
	must(t, d.Write(3, block(1)))
	if read(t, d, 3) != 1 {
		t.Error("what was written cannot be read")
	}
	d = open(t, disk, origin) // as after a power loss
	if read(t, d, 3) != 0 {
		t.Error("a write was stable before Flush")
	}
	must(t, d.Write(3, block(2)))
	must(t, d.Flush())
	d = open(t, disk, origin)
	if read(t, d, 3) != 2 {
		t.Error("a write was lost after Flush")
	}
}

// This number carries over to real hosts.
func TestAFlushCostsOneWriteToTheLog(t *testing.T) {
	d, disk, _ := start(t)
	before := disk.Writes()
	for i := range byte(5) {
		must(t, d.Write(uint64(i), block(i)))
		must(t, d.Write(uint64(i)+10, block(i)))
		must(t, d.Flush())
		must(t, d.Flush()) // nothing to do
	}
	if n := disk.Writes() - before; n != 5 {
		t.Errorf("5 flushes of 10 writes took %d writes to the log", n)
	}
	if h := d.State().RecordWrites; h.Count() != 5 || h.Sum != 10 || h.Counts[1] != 5 {
		t.Errorf("5 records of 2 writes each are told of as %+v", h)
	}
}

// slow is a disk whose writes wait for the test.
type slow struct {
	disk

	begun chan struct{}
	goOn  chan struct{}
}

type disk interface {
	ReadAt(p []byte, at int64) (int, error)
	WriteStable(p []byte, at int64) error
}

// openSlow returns a device of a disk whose writes wait for the test.
func openSlow(t *testing.T) (*Device, *slow) {
	t.Helper()
	_, base, origin := start(t)
	gate := &slow{disk: base, begun: make(chan struct{}), goOn: make(chan struct{})}
	opened := make(chan *Device)
	go func() { opened <- openOn(t, gate, origin) }()
	for {
		select { // the superblocks, and what Open erases
		case <-gate.begun:
			gate.goOn <- struct{}{}
		case d := <-opened:
			return d, gate
		}
	}
}

func TestReadsSeeTheNewestWriteDuringAFlush(t *testing.T) {
	d, gate := openSlow(t)
	must(t, errors.Join(d.Write(1, block(1)), d.Write(2, block(1))))
	flushed := make(chan error)
	go func() { flushed <- d.Flush() }()
	<-gate.begun
	must(t, d.Write(2, block(2)))
	if read(t, d, 1) != 1 || read(t, d, 2) != 2 {
		t.Errorf("blocks 1 and 2 have %d and %d", read(t, d, 1), read(t, d, 2))
	}
	gate.goOn <- struct{}{}
	must(t, <-flushed)
	if read(t, d, 1) != 1 || read(t, d, 2) != 2 {
		t.Errorf("after the flush blocks 1 and 2 have %d and %d", read(t, d, 1), read(t, d, 2))
	}
}

func TestWritesThatArriveDuringAFlushShareTheNext(t *testing.T) {
	d, gate := openSlow(t)
	var done sync.WaitGroup
	write := func(i byte) {
		done.Go(func() {
			if err := errors.Join(d.Write(uint64(i), block(i+1)), d.Flush()); err != nil {
				t.Error(err)
			}
		})
	}
	write(0)
	<-gate.begun
	for i := byte(1); i < 8; i++ {
		write(i)
	}
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.written == 8
	})
	gate.goOn <- struct{}{}
	<-gate.begun
	gate.goOn <- struct{}{}
	done.Wait()
	if s := d.log.State(); s.Sequence != 2 {
		t.Errorf("8 writers needed %d records, want 2", s.Sequence)
	}
}

func waitUntil(t *testing.T, f func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

func (s *slow) WriteStable(p []byte, at int64) error {
	s.begun <- struct{}{}
	<-s.goOn
	return s.disk.WriteStable(p, at)
}

func TestWritersNeverFailBecauseTheLogIsFull(t *testing.T) {
	d, disk, origin := start(t)
	for i := range 500 {
		must(t, d.Write(uint64(i%volumeBlocks), block(byte(i))))
		if i%3 == 0 {
			must(t, d.Flush())
		}
	}
	must(t, d.WriteBack(t.Context()))
	for i := 500 - volumeBlocks; i < 500; i++ {
		if got := origin.has(i % volumeBlocks); got != byte(i) {
			t.Errorf("block %d of the image has %d, want %d", i%volumeBlocks, got, byte(i))
		}
	}
	if s := open(t, disk, origin).log.State(); s.Dirty > volumeBlocks {
		t.Errorf("%d blocks are dirty", s.Dirty)
	}
}

func TestALongWriteGoesThroughAShortLog(t *testing.T) {
	d, _, _ := start(t)
	p := make([]byte, 0, volumeBlocks*record.BlockBytes)
	for i := range byte(volumeBlocks) {
		p = append(p, block(i+1)...)
	}
	for range 5 {
		must(t, d.Write(0, p))
	}
	must(t, d.Flush())
	for i := range byte(volumeBlocks) {
		if got := read(t, d, uint64(i)); got != i+1 {
			t.Errorf("block %d has %d", i, got)
		}
	}
}

// Each writer has blocks of its own, and reads back what it wrote, while records, write-back and holds go on.
func TestManyAtATime(t *testing.T) {
	d, disk, origin := start(t)
	var stop atomic.Bool
	var others, writers sync.WaitGroup
	others.Go(func() {
		for !stop.Load() {
			if _, err := d.Step(); err != nil && !errors.Is(err, ErrHeld) {
				t.Error(err)
				return
			}
		}
	})
	others.Go(func() {
		for !stop.Load() {
			if err := d.Hold(t.Context(), time.Minute); err != nil {
				t.Error(err)
				return
			}
			d.Resume()
		}
	})
	for w := range uint64(6) {
		writers.Go(func() {
			for i := range 300 {
				at, value := w*4+uint64(i%4), byte(i+1)
				var err error
				if i%7 == 6 {
					value, err = 0, d.Zero(at, 1, true)
				} else {
					err = d.Write(at, block(value))
				}
				if i%2 == 0 {
					err = errors.Join(err, d.Flush())
				}
				if got := read(t, d, at); err != nil || got != value {
					t.Errorf("block %d has %d, want %d; %v", at, got, value, err)
					return
				}
			}
		})
	}
	writers.Wait()
	stop.Store(true)
	others.Wait()
	must(t, d.Flush())
	d = open(t, disk, origin)
	must(t, d.WriteBack(t.Context()))
	for b := range volumeBlocks {
		if got := read(t, d, uint64(b)); got != origin.has(b) {
			t.Errorf("block %d reads as %d, and is %d in the image", b, got, origin.has(b))
		}
	}
}

func TestAWriteThatWouldWaitIsNotTried(t *testing.T) {
	d, disk, _ := start(t)
	if !d.TryWrite(1, block(1)) || read(t, d, 1) != 1 {
		t.Fatal("a write that has room was refused")
	}
	before := disk.Writes()
	long := make([]byte, ringBlocks/4*record.BlockBytes) // longer than a record
	if d.TryWrite(2, long) {
		t.Error("a write without room was taken")
	}
	d.WriteThrough(true)
	if d.TryWrite(1, block(2)) {
		t.Error("a write was answered before the image had it")
	}
	d.WriteThrough(false)
	if disk.Writes() != before || read(t, d, 1) != 1 {
		t.Errorf("%d writes to the log, and block 1 has %d", disk.Writes()-before, read(t, d, 1))
	}
	must(t, d.Flush())
	d.Close()
	if d.TryWrite(1, block(3)) {
		t.Error("a closed device took a write")
	}
}

// The next Flush covers it like any other write.
func TestATriedWriteIsStableAfterFlush(t *testing.T) {
	d, disk, origin := start(t)
	if !d.TryWrite(1, block(1)) {
		t.Fatal("a write that has room was refused")
	}
	must(t, d.Flush())
	if d = open(t, disk, origin); read(t, d, 1) != 1 {
		t.Errorf("block 1 has %d", read(t, d, 1))
	}
}

// hanging is an image that does not answer a read of one block until the test lets it.
type hanging struct {
	*image

	block       int64
	once        sync.Once
	begun, goOn chan struct{}
}

func (h *hanging) ReadAt(p []byte, at int64) (int, error) {
	if b := h.block * record.BlockBytes; at <= b && b < at+int64(len(p)) {
		h.once.Do(func() { close(h.begun) })
		<-h.goOn
	}
	return h.image.ReadAt(p, at)
}

// One request that Ceph does not answer stops neither write-back nor reads of what the log has.
func TestAReadThatTheImageDoesNotAnswerStopsNothingElse(t *testing.T) {
	_, disk, origin := start(t)
	hangs := &hanging{image: origin, block: 5, begun: make(chan struct{}), goOn: make(chan struct{})}
	d := open(t, disk, hangs)
	must(t, errors.Join(d.Write(1, block(1)), d.Write(2, block(2)), d.Flush()))
	hung := make(chan error, 1)
	p := ring.AlignedBytes(4 * record.BlockBytes) // blocks 2 to 5: the log has the first one
	go func() { hung <- d.Read(2, p) }()
	<-hangs.begun
	others := make(chan error, 1)
	go func() {
		_, err := d.Step()
		err = errors.Join(err, d.Release(), d.Write(1, block(3)), d.Write(5, block(9)), d.Zero(4, 1, true), d.WriteBack(t.Context()))
		err = errors.Join(err, d.Release(), d.Write(1, block(4)), d.Flush())
		q := ring.AlignedBytes(record.BlockBytes)
		err = errors.Join(err, d.Read(1, q))
		if q[0] != 4 {
			err = errors.Join(err, fmt.Errorf("block 1 has %d", q[0]))
		}
		others <- err
	}()
	select {
	case err := <-others:
		must(t, err)
	case <-time.After(20 * time.Second):
		t.Error("everything waits for the read that hangs")
	}
	close(hangs.goOn)
	must(t, <-hung)
	if p[0] != 2 || p[3*record.BlockBytes] != 9 { // block 5 was written during the read, and may be read as it was before, too
		t.Errorf("blocks 2 and 5 are read as %d and %d", p[0], p[3*record.BlockBytes])
	}
	if read(t, d, 4) != 0 || read(t, d, 5) != 9 {
		t.Errorf("blocks 4 and 5 have %d and %d", read(t, d, 4), read(t, d, 5))
	}
}

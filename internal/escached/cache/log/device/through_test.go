package device

import (
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// slowOrigin is an image whose writes wait for the test.
type slowOrigin struct {
	*image

	begun chan struct{}
	goOn  chan struct{}
}

func (s *slowOrigin) WriteAt(p []byte, at int64) (int, error) {
	s.begun <- struct{}{}
	<-s.goOn
	return s.image.WriteAt(p, at)
}

func openSlowOrigin(t *testing.T) (*Device, *logtest.Disk, *slowOrigin) {
	t.Helper()
	_, disk, origin := start(t)
	slow := &slowOrigin{image: origin, begun: make(chan struct{}), goOn: make(chan struct{})}
	return open(t, disk, slow), disk, slow
}

// dirty fails unless the device says that so much is dirty, or that something is.
func dirty(t *testing.T, d *Device, when string, want bool) {
	t.Helper()
	if s := d.State(); (s.Dirty > 0) != want || !want && s.Bringing > 0 {
		t.Errorf("%s: %d blocks are dirty, and %d on their way", when, s.Dirty, s.Bringing)
	}
}

// A writer has no answer before the image has its write: then nothing is lost with the cache.
func TestWritingThroughWhatHasNoAnswerYetIsNotDirty(t *testing.T) {
	d, _, origin := openSlowOrigin(t)
	d.WriteThrough(true)
	dirty(t, d, "nothing was written", false)
	var written sync.WaitGroup
	write := func(at uint64) {
		written.Go(func() {
			if err := d.Write(at, block(byte(at))); err != nil {
				t.Error(err)
			}
		})
	}
	write(1)
	<-origin.begun
	dirty(t, d, "a write is on its way to the image", false)
	write(3)
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.written == 2
	})
	dirty(t, d, "and another one waits", false)
	d.WriteThrough(true) // again
	dirty(t, d, "it was told so a second time", false)
	d.WriteThrough(false)
	dirty(t, d, "it does not write through any more", true)
	d.WriteThrough(true)
	dirty(t, d, "what was written meanwhile may be answered already", true)
	origin.goOn <- struct{}{}
	<-origin.begun
	origin.goOn <- struct{}{}
	written.Wait()
	dirty(t, d, "the image has it", false)
}

// Other users' writes are on their way to a slow image all the time. A flush waits for none of them: they have no answer.
func TestWritingThroughAFlushWaitsOnlyForWhatWasAnswered(t *testing.T) {
	d, _, origin := openSlowOrigin(t)
	must(t, d.Write(1, block(1)))
	d.WriteThrough(true)
	flushed := make(chan error, 1)
	flush := func() { flushed <- d.Flush() }
	go flush()
	<-origin.begun // block 1 was answered before, and is in the memory only
	select {
	case err := <-flushed:
		t.Fatalf("what was answered is not stable, and the flush returns %v", err)
	default:
	}
	origin.goOn <- struct{}{}
	must(t, <-flushed)
	written := make(chan error)
	go func() { written <- d.Write(3, block(3)) }()
	<-origin.begun
	go flush()
	select {
	case err := <-flushed:
		must(t, err)
	case <-time.After(10 * time.Second):
		t.Error("the flush waits for a write that has no answer")
	}
	origin.goOn <- struct{}{}
	must(t, <-written)
	must(t, d.FlushAll())
}

func TestWritingThroughWhatWasAnsweredBeforeIsDirtyUntilTheImageHasIt(t *testing.T) {
	for name, before := range map[string]func(d *Device) error{
		"in the log":    func(d *Device) error { return d.Flush() },
		"in the memory": func(*Device) error { return nil },
	} {
		d, _, origin := openSlowOrigin(t)
		must(t, d.Write(1, block(1)))
		must(t, before(d))
		d.WriteThrough(true)
		dirty(t, d, name, true)
		written := make(chan error)
		go func() { written <- d.Write(3, block(3)) }()
		for range 2 { // blocks 1 and 3
			<-origin.begun
			dirty(t, d, name+", and on its way", true)
			origin.goOn <- struct{}{}
		}
		must(t, <-written)
		dirty(t, d, name+", and the image has it", false)
	}
}

// The record of such a volume may say that everything is in Ceph. Then its replicas are dropped, or the image is used without them.
func TestWritingThroughNothingIsDirtyOnTheDisk(t *testing.T) {
	d, disk, origin := openSlowOrigin(t)
	found := func(when string, dirty uint64) {
		t.Helper()
		if n := dirtyOn(t, disk); n != dirty {
			t.Errorf("%s: %d blocks are dirty on the disk, want %d", when, n, dirty)
		}
	}
	written := make(chan error)
	write := func(at uint64) { written <- d.Write(at, block(byte(at))) }
	must(t, errors.Join(d.Write(1, block(1)), d.Flush()))
	d.WriteThrough(true)
	go write(3)
	<-origin.begun
	found("what was answered before is on its way, and a write", 2)
	for range 2 {
		origin.goOn <- struct{}{}
		if read(t, d, 3) != 3 {
			t.Error("a write under way cannot be read")
		}
		select {
		case <-origin.begun:
		case err := <-written:
			must(t, err)
		}
	}
	found("the image has both", 0)

	go write(5)
	<-origin.begun
	found("a write is on its way", 0)
	other := &logtest.Disk{Stable: slices.Clone(disk.Stable)}
	another := open(t, other, origin.image) // on another host, after the loss of this one
	if read(t, another, 5) != 0 || dirtyOn(t, other) != 0 {
		t.Errorf("block 5, whose writer has no answer, has %d", read(t, another, 5))
	}
	must(t, errors.Join(another.Write(5, block(7)), another.Flush()))
	if read(t, open(t, other, origin.image), 5) != 7 || dirtyOn(t, other) != 1 {
		t.Error("what the other host writes is lost")
	}

	d.WriteThrough(false)
	flushed := make(chan error)
	go func() { flushed <- errors.Join(d.Write(7, block(7)), d.Flush()) }()
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.written == 4
	})
	found("it does not write through any more", 0)
	origin.goOn <- struct{}{}
	must(t, errors.Join(<-written, <-flushed))
	found("it writes back", 1)
}

// Another process has the device: it does not know what was answered.
func TestWritingThroughWhatAProcessFindsIsDirty(t *testing.T) {
	d, disk, origin := start(t)
	must(t, d.Write(1, block(1)))
	must(t, d.Flush())
	d = open(t, disk, origin)
	d.WriteThrough(true)
	dirty(t, d, "found in the log", true)
	must(t, d.Write(3, block(3)))
	dirty(t, d, "written back with a write", false)
}

// TestNothingAnsweredIsSaidToBeClean has writers, and somebody who changes the mode and looks: whenever he is told that nothing is dirty, the image
// has everything that was answered before he asked.
func TestNothingAnsweredIsSaidToBeClean(t *testing.T) {
	d, _, origin := start(t)
	var (
		stop     atomic.Bool
		writers  sync.WaitGroup
		answered numbers
	)
	answered.write(t, d, &stop, &writers)
	writers.Go(func() { // as the process does
		for !stop.Load() {
			if err := d.WriteBack(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	clean, through := 0, false
	for begun := time.Now(); time.Since(begun) < 2*time.Second; {
		through = !through
		d.WriteThrough(through)
		for range 50 {
			before := answered.now()
			if s := d.State(); s.Dirty > 0 || s.Bringing > 0 {
				time.Sleep(100 * time.Microsecond)
				continue
			}
			clean++
			origin.mustHave(t, before, "clean")
		}
	}
	stop.Store(true)
	writers.Wait()
	if clean == 0 {
		t.Error("it was never clean, although it wrote through")
	}
}

// numbers are the last ones that writers had an answer to. Each writes to a block of its own.
type numbers [8]atomic.Uint64

// write starts the writers. They write one number after the other until stop is set.
func (n *numbers) write(t *testing.T, d *Device, stop *atomic.Bool, writers *sync.WaitGroup) {
	t.Helper()
	for i := range n {
		writers.Go(func() {
			p := ring.AlignedBytes(record.BlockBytes)
			for number := uint64(1); !stop.Load(); number++ {
				binary.LittleEndian.PutUint64(p, number)
				if err := d.Write(uint64(2*i), p); err != nil {
					t.Error(err)
					return
				}
				n[i].Store(number)
			}
		})
	}
}

func (n *numbers) now() (now [len(numbers{})]uint64) {
	for i := range n {
		now[i] = n[i].Load()
	}
	return now
}

// mustHave fails the test if the image lacks what was answered before.
func (i *image) mustHave(t *testing.T, before [len(numbers{})]uint64, when string) {
	t.Helper()
	for writer, want := range before {
		if got := i.number(2 * writer); got < want {
			t.Fatalf("%s, and block %d of the image has %d; %d was answered", when, 2*writer, got, want)
		}
	}
}

func (i *image) number(block int) uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return binary.LittleEndian.Uint64(i.bytes[block*record.BlockBytes:])
}

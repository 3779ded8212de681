package nbd_test

import (
	"bytes"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/nbdtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// late is a volume whose first write takes until goOn is closed.
type late struct {
	*disk

	writes      atomic.Int32
	begun, goOn chan struct{}
}

func newLate() *late {
	return &late{disk: newDisk(), begun: make(chan struct{}), goOn: make(chan struct{})}
}

func (l *late) TryWrite(start uint64, p []byte) bool {
	return l.writes.Load() > 0 && l.disk.TryWrite(start, p)
}

func (l *late) Write(start uint64, p []byte) error {
	if l.writes.Add(1) == 1 {
		close(l.begun)
		<-l.goOn
	}
	return l.disk.Write(start, p)
}

func write(block int, content byte) (nbd.Request, []byte) {
	return nbd.Request{Command: nbd.Write, Offset: uint64(block) * record.BlockBytes, Bytes: record.BlockBytes}, bytes.Repeat([]byte{content}, record.BlockBytes)
}

// The kernel repeats a request that takes long on another connection, while the first one is still at it here.
func TestARequestThatWasRepeatedIsNotDoneAfterALaterOne(t *testing.T) {
	v := newLate()
	serve := server(t, v)
	c := nbdtest.NewClient()
	conn, ended := serve()
	c.Connect(conn)
	older := make(chan error, 1)
	go func() { older <- c.Do(write(3, 1)) }()
	<-v.begun
	conn.Close() // the kernel has waited long enough
	second, _ := serve()
	c.Connect(second)
	var err error
	select {
	case err = <-older:
		must(t, c.Do(write(3, 2)))
		close(v.goOn)
	case <-time.After(300 * time.Millisecond): // the repetition waits for the first one
		close(v.goOn)
		err = <-older
		must(t, c.Do(write(3, 2)))
	}
	must(t, err)
	<-ended
	got := make([]byte, record.BlockBytes)
	must(t, v.Read(3, got))
	if got[0] != 2 {
		t.Errorf("the block has %d: the first write was done after the second one", got[0])
	}
}

// A repetition whose own connection is lost must not wait as long as the first one takes: more come with each connection.
func TestARepetitionThatWasRepeatedItselfIsDropped(t *testing.T) {
	v := newLate()
	serve := server(t, v)
	c := nbdtest.NewClient()
	first, _ := serve()
	c.Connect(first)
	older := make(chan error, 1)
	go func() { older <- c.Do(write(3, 1)) }()
	<-v.begun
	first.Close()
	second, dropped := serve()
	c.Connect(second)
	third, _ := serve()
	c.Connect(third) // closes the second one
	isLost(t, dropped)
	close(v.goOn)
	must(t, <-older)
}

// isLost waits until the second connection is not served any more.
func isLost(t *testing.T, dropped <-chan error) {
	t.Helper()
	select {
	case err := <-dropped:
		if !errors.Is(err, nbd.ErrGone) {
			t.Errorf("Serve: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second connection is still served, although it is lost")
	}
}

// What is still unread when the kernel gives a connection up, it has repeated on another one, or will.
func TestWhatIsLeftOnALostConnectionIsNotDone(t *testing.T) {
	for name, v := range map[string]nbd.Volume{"at once": newDisk(), "later": newLate()} {
		client, file, err := nbdtest.Pair()
		must(t, err)
		conn, err := net.FileConn(file)
		must(t, errors.Join(err, file.Close()))
		for _, command := range []nbd.Command{nbd.Write, nbd.WriteZeroes} {
			r, data := write(3, 1)
			r.Command = command
			if command != nbd.Write {
				data = nil
			}
			_, err := client.Write(append(r.Encode(), data...))
			must(t, err)
		}
		raw, err := client.(*net.UnixConn).SyscallConn()
		must(t, err)
		must(t, raw.Control(func(fd uintptr) { err = unix.Shutdown(int(fd), unix.SHUT_RDWR) }))
		must(t, err)
		if l, ok := v.(*late); ok {
			close(l.goOn)
		}
		err = nbd.NewExport(v).Serve(conn, nil)
		if !errors.Is(err, nbd.ErrGone) {
			t.Errorf("%s: Serve: %v", name, err)
		}
		var asked bool
		switch v := v.(type) {
		case *disk:
			asked = v.writes > 0
		case *late:
			asked = v.writes.Load() > 0 || v.disk.writes > 0
		}
		if asked {
			t.Errorf("%s: the volume was written to", name)
		}
		client.Close()
	}
}

// unit is what times in the tests of a slow volume are counted in. They run on a clock of their own.
const unit = time.Second

// slowly is a volume whose requests take three units each. A read has what was there when it began.
type slowly struct {
	*disk

	asked atomic.Int32
	fails atomic.Int32 // so many requests, from now on
}

func (s *slowly) take(do func() error) error {
	s.asked.Add(1)
	failing := s.fails.Add(-1) >= 0
	err := do()
	time.Sleep(3 * unit)
	if failing {
		return errBroken
	}
	return err
}

func (s *slowly) Read(start uint64, p []byte) error {
	return s.take(func() error { return s.disk.Read(start, p) })
}

func (s *slowly) TryWrite(uint64, []byte) bool { return false }

func (s *slowly) Write(start uint64, p []byte) error {
	return s.take(func() error { return s.disk.Write(start, p) })
}

func (s *slowly) Zero(start uint64, blocks uint32, trim bool) error {
	return s.take(func() error { return s.disk.Zero(start, blocks, trim) })
}

// quickly is one whose writes to memory take no time: only its flushes do. A write before a flush makes that one take its time.
type quickly struct {
	*slowly

	written atomic.Bool
}

func (q *quickly) Write(start uint64, p []byte) error {
	q.written.Store(true)
	return q.disk.Write(start, p)
}

func (q *quickly) Flush() error {
	if !q.written.Swap(false) {
		return nil
	}
	return q.take(q.disk.Flush)
}

// export serves a volume on connections without a kernel, as many as it is called.
func export(v nbd.Volume, c *nbdtest.Client) (connect func()) {
	x := nbd.NewExport(v)
	return func() {
		client, conn := net.Pipe()
		go func() {
			_ = x.Serve(conn, nil)
			_ = conn.Close()
		}()
		c.Connect(client)
	}
}

// The kernel gives a request up after a while, and repeats it. While Ceph takes longer than that, users must get on.
func TestARequestThatTakesLongerThanTheKernelWaitsIsAnswered(t *testing.T) {
	r, data := write(3, 1)
	as := func(c nbd.Command, flags uint16) nbd.Request {
		r.Command, r.Flags = c, flags
		return r
	}
	for name, test := range map[string]struct {
		request nbd.Request
		data    []byte
		quickly bool
		asked   int32
	}{
		"a read":               {as(nbd.Read, 0), make([]byte, len(data)), false, 1},
		"a write":              {as(nbd.Write, 0), data, false, 1},
		"a write with a flush": {as(nbd.Write, nbd.FUA), data, true, 1},
		"zeroes":               {as(nbd.WriteZeroes, nbd.NoHole), nil, false, 1},
		"a trim":               {as(nbd.Trim, 0), nil, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := &slowly{disk: newDisk()}
				must(t, slow.disk.Write(3, bytes.Repeat([]byte{7}, record.BlockBytes)))
				var v nbd.Volume = slow
				if test.quickly {
					v = &quickly{slowly: slow}
				}
				c := nbdtest.NewClient()
				connect := export(v, c)
				connect()
				answered := make(chan error, 1)
				go func() { answered <- c.Do(test.request, test.data) }()
				for repeated := 0; ; repeated++ {
					select {
					case err := <-answered:
						must(t, err)
					case <-time.After(2 * unit):
						if repeated < 10 {
							connect()
							continue
						}
						t.Error("it is repeated for ever")
						must(t, <-answered)
					}
					break
				}
				c.Disconnect()
				time.Sleep(10 * unit)
				if n := slow.asked.Load(); n != test.asked {
					t.Errorf("the volume was asked %d times", n)
				}
				got := make([]byte, record.BlockBytes)
				must(t, slow.disk.Read(3, got))
				switch test.request.Command {
				case nbd.Read:
					if test.data[0] != 7 {
						t.Errorf("it reads %d", test.data[0])
					}
				case nbd.Write:
					if got[0] != 1 {
						t.Errorf("the block has %d", got[0])
					}
				default:
					if got[0] != 0 {
						t.Errorf("the block has %d", got[0])
					}
				}
			})
		})
	}
}

// begun starts a request and returns when the server has it.
func begun(c *nbdtest.Client, r nbd.Request, data []byte) chan error {
	answered := make(chan error, 1)
	go func() { answered <- c.Do(r, data) }()
	synctest.Wait()
	return answered
}

// A read that was under way before a write, and did not see it, is no answer to a read that begins after the write was answered.
func TestAReadIsNotAnsweredWithWhatWasThereBeforeAWrite(t *testing.T) {
	for name, plain := range map[string]bool{"a write that waits": false, "a write that is done at once": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := &slowly{disk: newDisk()}
				var v nbd.Volume = slow
				if plain {
					v = &slowReads{slow}
				}
				c := nbdtest.NewClient()
				export(v, c)()
				r, data := write(3, 1)
				reads := nbd.Request{Command: nbd.Read, Offset: r.Offset, Bytes: r.Bytes}
				got := [4][]byte{}
				for i := range got {
					got[i] = make([]byte, len(data))
				}
				first := begun(c, reads, got[0])
				shared := begun(c, reads, got[1]) // nothing was written since
				if n := slow.asked.Load(); n != 1 {
					t.Errorf("two reads of the same are asked for %d times", n)
				}
				time.Sleep(unit)
				written := begun(c, r, data)
				before := begun(c, reads, got[2]) // the write may be in it or not
				if plain {
					must(t, <-written)
				}
				after := begun(c, reads, got[3])
				must(t, errors.Join(<-first, <-shared, <-before, <-after))
				if !plain {
					must(t, <-written)
					must(t, c.Do(reads, got[3]))
				}
				if got[0][0] != 0 || got[1][0] != 0 || got[3][0] != 1 {
					t.Errorf("before the write %d and %d are read, and after it %d", got[0][0], got[1][0], got[3][0])
				}
				c.Disconnect()
			})
		})
	}
}

// slowReads is a volume of which only reads take their time.
type slowReads struct{ *slowly }

func (s *slowReads) TryWrite(start uint64, p []byte) bool { return s.disk.TryWrite(start, p) }

// Who writes something else, or whose first attempt has failed, has it done.
func TestAWriteIsAnsweredForAnotherOneOnlyIfThatHasDoneIt(t *testing.T) {
	one, data := write(3, 1)
	two, other := write(3, 2)
	long := nbd.Request{Command: nbd.Write, Offset: one.Offset, Bytes: 2 * record.BlockBytes}
	zeroes := nbd.Request{Command: nbd.WriteZeroes, Offset: one.Offset, Bytes: one.Bytes}
	for name, test := range map[string]struct {
		request nbd.Request
		data    []byte
		fails   int32
		asked   int32
		has     byte
	}{
		"the same":        {one, data, 0, 1, 1},
		"after a failure": {one, data, 1, 2, 1},
		"other data":      {two, other, 0, 2, 2},
		"another range":   {long, bytes.Repeat([]byte{1}, 2*record.BlockBytes), 0, 2, 1},
		"zeroes":          {zeroes, nil, 0, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := &slowly{disk: newDisk()}
				v.fails.Store(test.fails)
				c := nbdtest.NewClient()
				export(v, c)()
				first := begun(c, one, data)
				second := begun(c, test.request, test.data)
				if err := <-first; (err != nil) != (test.fails > 0) {
					t.Errorf("the first one: %v", err)
				}
				must(t, <-second)
				got := make([]byte, record.BlockBytes)
				must(t, v.disk.Read(3, got))
				if n := v.asked.Load(); n != test.asked || got[0] != test.has {
					t.Errorf("the volume was asked %d times, and the block has %d", n, got[0])
				}
				c.Disconnect()
			})
		})
	}
}

// stuck is a volume whose reads take until goOn is closed.
type stuck struct {
	*late

	reads atomic.Int32
}

func (s *stuck) Read(start uint64, p []byte) error {
	if s.reads.Add(1) == 1 {
		close(s.begun)
	}
	<-s.goOn
	return s.disk.Read(start, p)
}

// A read that waits for another one holds memory. It must not do so once its own connection is lost.
func TestARepeatedReadWhoseConnectionIsLostIsDropped(t *testing.T) {
	v := &stuck{late: newLate()}
	must(t, v.disk.Write(3, bytes.Repeat([]byte{7}, record.BlockBytes)))
	serve := server(t, v)
	c := nbdtest.NewClient()
	first, _ := serve()
	c.Connect(first)
	r, _ := write(3, 1)
	r.Command = nbd.Read
	got := make([]byte, record.BlockBytes)
	answered := make(chan error, 1)
	go func() { answered <- c.Do(r, got) }()
	<-v.begun
	second, dropped := serve()
	c.Connect(second)
	third, _ := serve()
	c.Connect(third)
	isLost(t, dropped)
	close(v.goOn)
	must(t, <-answered)
	if n := v.reads.Load(); n != 1 || got[0] != 7 {
		t.Errorf("the volume was asked %d times, and the block reads as %d", n, got[0])
	}
}

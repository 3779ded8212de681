package nbd_test

import (
	"bytes"
	"errors"
	"net"
	"sync/atomic"
	"testing"
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
	select {
	case err := <-dropped:
		if !errors.Is(err, nbd.ErrGone) {
			t.Errorf("Serve: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second connection is still served, although it is lost")
	}
	close(v.goOn)
	must(t, <-older)
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

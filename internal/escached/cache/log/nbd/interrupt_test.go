package nbd_test

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/nbdtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// The kernel notices nothing: each request gets one answer, although every few bytes somebody else goes on with the connection.
func TestAnInterruptedConnectionGoesOnElsewhere(t *testing.T) {
	d := newDisk()
	client, file, err := nbdtest.Pair()
	must(t, err)
	conn, err := net.FileConn(file)
	must(t, errors.Join(err, file.Close()))
	ended, interruptions := make(chan error, 1), 0
	go func() {
		var left []byte
		for {
			err := nbd.NewExport(d).Serve(conn, left)
			var interrupted *nbd.InterruptedError
			if !errors.As(err, &interrupted) {
				ended <- err
				return
			}
			interruptions++
			left = interrupted.Left
			must(t, conn.SetReadDeadline(time.Time{}))
		}
	}()
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				_ = conn.SetReadDeadline(time.Now())
			}
		}
	}()
	var stream []byte
	for i := range 16 {
		r, data := write(i, byte(i+1))
		r.Cookie = uint64(i)
		stream = append(append(stream, r.Encode()...), data...)
	}
	stream = append(stream, nbd.Request{Command: nbd.Close}.Encode()...)
	go func() {
		for piece := range slices.Chunk(stream, 1000) {
			_, _ = client.Write(piece)
			time.Sleep(500 * time.Microsecond)
		}
	}()
	k := kernel{t, client}
	want := map[uint64]bool{}
	for i := range uint64(16) {
		want[i] = true
	}
	k.replies(want)
	must(t, <-ended)
	close(stop)
	for i := range 16 {
		got := make([]byte, record.BlockBytes)
		must(t, d.Read(uint64(i), got))
		if !bytes.Equal(got, bytes.Repeat([]byte{byte(i + 1)}, record.BlockBytes)) {
			t.Errorf("block %d has %d", i, got[0])
		}
	}
	if interruptions == 0 {
		t.Error("nothing was interrupted: the test has tried nothing")
	}
}

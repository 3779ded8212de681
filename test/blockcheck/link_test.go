package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLink(t *testing.T) {
	want := make([]byte, 2*linkBuffers*linkBuffer+1)
	_, _ = rand.Read(want)
	l, got, received := listen(t), &bytes.Buffer{}, make(chan error, 1)
	go func() { received <- receive(t.Context(), l, got) }()
	rate, err := send(t.Context(), l.Addr().String(), bytes.NewReader(want), int64(len(want)))
	if err != nil || rate <= 0 {
		t.Errorf("%.0f bytes a second, %v", rate, err)
	}
	if err := <-received; err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes of %d arrived, or others: %v", got.Len(), len(want), err)
	}
}

func TestLinkWithoutSender(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := receive(ctx, listen(t), io.Discard); err == nil {
		t.Error("ended without an error, and nobody has sent")
	}
}

func TestLinkOverADiskThatFails(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		from io.Reader
		to   io.Writer
	}{
		"the reader": {io.MultiReader(bytes.NewReader(make([]byte, linkBuffer)), iotest.ErrReader(broken)), io.Discard},
		"the writer": {zeros{}, failingWriter{broken}},
	} {
		if err := pass(t.Context(), c.from, c.to); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

package main

import (
	"context"
	"net"
	"testing"
)

func TestLink(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan error, 1)
	go func() { received <- receive(t.Context(), l) }()
	rate, err := send(t.Context(), l.Addr().String(), 3*linkBuffer+1)
	if err != nil || rate <= 0 {
		t.Errorf("%.0f bytes a second, %v", rate, err)
	}
	if err := <-received; err != nil {
		t.Error(err)
	}
}

func TestLinkWithoutSender(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := receive(ctx, l); err == nil {
		t.Error("ended without an error, and nobody has sent")
	}
}

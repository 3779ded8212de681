package csiserver

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc"
)

// Serve serves until the context ends, then lets running calls end for at most the grace time.
func Serve(ctx context.Context, server *grpc.Server, listener net.Listener, grace time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	Stop(server, grace)
	return nil
}

// Stop refuses new calls, lets running ones end for at most the grace time, and cuts off the rest.
func Stop(server *grpc.Server, grace time.Duration) {
	timer := time.AfterFunc(grace, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

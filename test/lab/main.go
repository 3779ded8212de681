// Command lab starts and controls a laboratory of real parts on this machine: Ceph, hosts with a
// stock kernel, DRBD and dm-writecache, and a network that can be cut.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/escache/escache-csi/test/lab/supervisor"
)

func main() {
	if supervisor.IsSupervisor(os.Args) {
		os.Exit(supervisor.Supervise(os.Args[2]))
	}
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := root().ExecuteContext(ctx)
	var status exitStatusError
	switch {
	case errors.As(err, &status):
		return int(status)
	case err != nil:
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
	return 0
}

// exitStatusError is the exit status of a command on a node. This program exits with it.
type exitStatusError int

func (e exitStatusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

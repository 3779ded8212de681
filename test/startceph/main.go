// Command startceph runs a real, minimal Ceph on loopback in the foreground. It ends with Ctrl-C or
// with the terminal, and then removes its files.
//
//	go run ./test/startceph
//	CEPH_CONF=… rbd create --size 1G rbd/try
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/escache/escache-csi/test/internal/microceph"
)

func main() {
	port := flag.Int("port", 0, "port of the monitor for protocol v1; v2 uses the next one; 0 means two free ports")
	propose := flag.Duration("propose-interval", 0, "paxos_propose_interval; 0 means Ceph's default, one second")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, *port, *propose)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "startceph:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, port int, propose time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "microceph-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	begin := time.Now()
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cluster, err := microceph.Start(starting, microceph.Config{
		Dir: filepath.Join(dir, "ceph"), Address: "127.0.0.1", Port: port, ProposeInterval: propose,
		Log: func(step string) { fmt.Fprintf(os.Stderr, "[%5.1fs] %s\n", time.Since(begin).Seconds(), step) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Stop(context.WithoutCancel(ctx))) }()

	fmt.Fprintf(os.Stderr, "[%5.1fs] ready\n", time.Since(begin).Seconds())
	fmt.Println("CEPH_CONF=" + cluster.Conf())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(time.Second):
			if err := cluster.Failed(); err != nil {
				return err
			}
		}
	}
}

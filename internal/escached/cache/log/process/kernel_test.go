package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/nbdtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// kernelOf plays the kernel's driver with one device. Its requests go to the first connection; the second one is there only.
type kernelOf struct {
	*nbdtest.Client

	t *testing.T

	mu        sync.Mutex
	backend   string // "": not connected
	bytes     int64
	conns     [connections]*net.UnixConn
	open      bool
	connects  int
	reconnect int // sockets that were taken
}

func newKernel(t *testing.T) *kernelOf {
	t.Helper()
	return &kernelOf{t: t, Client: nbdtest.NewClient()}
}

const index = 3

func (k *kernelOf) Find(backend string) (kernel.Found, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return kernel.Found{Index: index, Bytes: k.bytes}, k.backend == backend, nil
}

func (k *kernelOf) Connect(_ context.Context, d kernel.Device) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.backend != "" || len(d.Sockets) != connections || d.Flags != nbd.Flags {
		k.t.Errorf("a device is made of %+v, and there is %q", d, k.backend)
	}
	k.backend, k.bytes = d.Backend, d.Bytes
	k.connects++
	for i, fd := range d.Sockets {
		k.take(i, fd)
	}
	return index, nil
}

func (k *kernelOf) take(i, fd int) {
	own, err := unix.Dup(fd)
	if err == nil {
		k.conns[i], err = connOf(own)
	}
	if err != nil {
		k.t.Error(err)
	}
	if i == 0 {
		k.Client.Connect(k.conns[0])
	}
}

func (k *kernelOf) check(backend string) error {
	if k.backend != backend {
		return fmt.Errorf("%w: %q", kernel.ErrNotConnected, k.backend)
	}
	return nil
}

func (k *kernelOf) Reconnect(_ context.Context, _ int, backend string, sockets []int) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.check(backend); err != nil {
		return err
	}
	for _, fd := range sockets {
		for i, conn := range k.conns {
			if hungUp(conn) {
				k.reconnect++
				k.take(i, fd)
				break
			}
		}
	}
	return nil
}

func (k *kernelOf) Resize(_ context.Context, _ int, backend string, n int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.bytes = n
	return k.check(backend)
}

func (k *kernelOf) DisconnectUnused(_ context.Context, _ int, backend string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.open {
		return kernel.ErrOpen
	}
	err := k.check(backend)
	k.disconnect()
	return err
}

func (k *kernelOf) setOpen(open bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.open = open
}

func (k *kernelOf) disconnect() {
	k.backend = ""
	k.Disconnect()
	_, _ = k.conns[1].Write(nbd.Request{Command: nbd.Close}.Encode())
}

func (k *kernelOf) WithoutScheduler(int) error { return errors.New("there is none") }

// lose is what the kernel does with a connection on which a request takes long.
func (k *kernelOf) lose(i int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.conns[i].Close()
	a, b, err := pairs(1)
	if err != nil {
		k.t.Error(err)
		return
	}
	closeAll(b)
	k.conns[i] = a[0] // one that is lost
}

func (k *kernelOf) write(block int, content byte, flags uint16) error {
	p := make([]byte, record.BlockBytes)
	for i := range p {
		p[i] = content
	}
	return k.Do(nbd.Request{Command: nbd.Write, Flags: flags, Offset: uint64(block) * record.BlockBytes, Bytes: record.BlockBytes}, p)
}

func (k *kernelOf) read(block int) byte {
	k.t.Helper()
	p := make([]byte, record.BlockBytes)
	if err := k.Do(nbd.Request{Command: nbd.Read, Offset: uint64(block) * record.BlockBytes, Bytes: record.BlockBytes}, p); err != nil {
		k.t.Errorf("read block %d: %v", block, err)
	}
	return p[0]
}

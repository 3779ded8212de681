package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/blockfile"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

const (
	volumeBlocks = 512
	ringBlocks   = 1024
)

// host has a disk that is formatted, an image, and a kernel.
type host struct {
	*kernelOf

	config Config
	client *control.Client
}

func newHost(t *testing.T) *host {
	t.Helper()
	shm, err := os.MkdirTemp("/dev/shm", "escache-process") //nolint:usetesting // t.TempDir is on a disk
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(shm) })
	dir := t.TempDir()
	c := Config{
		Name: "v", Disk: filepath.Join(dir, "disk"), Origin: filepath.Join(dir, "image"), Bytes: volumeBlocks * record.BlockBytes,
		Identity: cache.Identity{Pool: "p", Image: "i", ImageID: "1"}, Version: "v1",
		Socket: filepath.Join(shm, "s"), Memory: filepath.Join(shm, "memory"),
	}
	logBytes := int64(record.Superblocks+ringBlocks) * record.BlockBytes
	must(t, os.WriteFile(c.Disk, make([]byte, cache.HeaderBytes+logBytes), 0o600))
	must(t, os.WriteFile(c.Origin, make([]byte, c.Bytes), 0o600))
	header, err := cache.Header{Identity: c.Identity, Formatted: true}.Block()
	must(t, err)
	disk, err := blockfile.OpenLog(c.Disk)
	must(t, err)
	block := ring.AlignedBytes(record.BlockBytes)
	copy(block, header)
	must(t, errors.Join(disk.WriteStable(block, 0), ring.Format(logDisk{disk}, record.Volume{1}, logBytes), disk.Close()))
	return &host{kernelOf: newKernel(t), config: c, client: control.NewClient(c.Socket)}
}

// run runs a process, and returns when it serves. Ended has what Run returned.
func (h *host) run() (ended chan error, signal func()) {
	h.t.Helper()
	ended = make(chan error, 1)
	signals := make(chan os.Signal, 1)
	before, _ := h.client.Status(h.t.Context())
	go func() { ended <- Run(context.Background(), h.config, h, signals, slog.New(slog.DiscardHandler)) }()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		s, err := h.client.Status(h.t.Context())
		if err == nil && s.Log.Generation != before.Log.Generation {
			return ended, func() { signals <- os.Interrupt }
		}
		select {
		case err := <-ended:
			h.t.Fatalf("the process ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			h.t.Fatalf("the process does not serve: %v", err)
		}
	}
}

// stop ends the process and checks that it ends well.
func (h *host) stop(ended chan error) {
	h.t.Helper()
	must(h.t, h.client.Stop(h.t.Context()))
	must(h.t, within(h.t, ended))
}

func within(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the process does not end")
		return nil
	}
}

func (h *host) status() control.Status {
	h.t.Helper()
	s, err := h.client.Status(h.t.Context())
	must(h.t, err)
	return s
}

// imageHas is what the image has in a block.
func (h *host) imageHas(block int) byte {
	h.t.Helper()
	data, err := os.ReadFile(h.config.Origin)
	must(h.t, err)
	return data[block*record.BlockBytes]
}

func (h *host) eventually(what string, f func() bool) {
	h.t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			h.t.Fatalf("it does not happen: %s", what)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// writers have a block each, which they write over and over, and read again; every flushed-th write is stable
// when it is answered. finish ends them, and returns what each has written last, which is there.
func (h *host) writers(n, flushed int) (finish func() []int) {
	stop := make(chan struct{})
	var writers sync.WaitGroup
	written := make([]int, n)
	for w := range written {
		writers.Go(func() {
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := h.write(w, byte(i), uint16(i%flushed/(flushed-1))*nbd.FUA); err != nil {
					h.t.Error(err)
					return
				}
				if got := h.read(w); got != byte(i) {
					h.t.Errorf("block %d has %d after %d was written", w, got, byte(i))
					return
				}
				written[w] = i
			}
		})
	}
	return func() []int {
		close(stop)
		writers.Wait()
		for w, i := range written {
			if got := h.read(w); got != byte(i) || i == 0 {
				h.t.Errorf("block %d has %d, and %d was written", w, got, byte(i))
			}
		}
		return written
	}
}

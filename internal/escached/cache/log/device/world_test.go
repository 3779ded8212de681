package device

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

const (
	volumeBlocks = 24
	ringBlocks   = 48
)

var errImage = errors.New("input/output error")

// image is an origin in memory, which can refuse writes.
type image struct {
	mu      sync.Mutex
	bytes   []byte
	refuses bool
	writes  int
	zeroed  int
	trimmed int64
}

func newImage() *image { return &image{bytes: make([]byte, volumeBlocks*record.BlockBytes)} }

func (i *image) ReadAt(p []byte, at int64) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return copy(p, i.bytes[at:]), nil
}

func (i *image) WriteAt(p []byte, at int64) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refuses {
		return 0, errImage
	}
	i.writes++
	return copy(i.bytes[at:], p), nil
}

func (i *image) Zero(at, bytes int64, trim bool) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.refuses {
		return errImage
	}
	i.zeroed++
	if trim {
		i.trimmed += bytes
	}
	clear(i.bytes[at:][:bytes])
	return nil
}

func (i *image) refuse(on bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refuses = on
}

func (i *image) has(block int) byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.bytes[block*record.BlockBytes]
}

func start(t *testing.T) (*Device, *logtest.Disk, *image) {
	t.Helper()
	disk := logtest.NewDisk(record.Superblocks+ringBlocks, rand.New(rand.NewPCG(3, 4)))
	if err := ring.Format(disk, record.Volume{1}, int64(len(disk.Stable))); err != nil {
		t.Fatal(err)
	}
	origin := newImage()
	return open(t, disk, origin), disk, origin
}

func open(t *testing.T, disk *logtest.Disk, origin Origin) *Device {
	t.Helper()
	log, losses, err := ring.Open(disk)
	if err != nil || len(losses) > 0 {
		t.Fatalf("open: %v, %v", losses, err)
	}
	return New(log, origin)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func block(b byte) []byte { return bytes.Repeat([]byte{b}, record.BlockBytes) }

func read(t *testing.T, d *Device, at uint64) byte {
	t.Helper()
	p := ring.AlignedBytes(record.BlockBytes)
	must(t, d.Read(at, p))
	return p[0]
}

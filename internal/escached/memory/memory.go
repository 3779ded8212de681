// Package memory says whether this host has memory for one more connected cache. A cache's memory
// cannot be swapped out, and the kernel takes it while it makes the device: if there is too little,
// it kills processes of others. So a cache is refused before.
package memory

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"sync"

	"github.com/prometheus/procfs"
)

// ErrShort means that there is too little memory for a cache.
var ErrShort = errors.New("too little memory")

// Reading is the host's memory at one moment, in bytes.
type Reading struct {
	Total int64
	// Available is what the kernel can give without swapping: MemAvailable of /proc/meminfo.
	Available int64
}

// maxReserve bounds Reserve.
const maxReserve = 1 << 30

// Reserve is the memory that caches leave to everything else: a sixteenth of all memory, at most
// 1 GiB.
func (r Reading) Reserve() int64 { return min(r.Total/16, maxReserve) }

// Free is the memory that more caches may take.
func (r Reading) Free() int64 { return max(0, r.Available-r.Reserve()) }

// Proc reads the memory from a mounted procfs.
type Proc struct {
	// Path is where it is mounted, usually /proc.
	Path string
}

// Read implements Reader.
func (p Proc) Read() (Reading, error) {
	fs, err := procfs.NewFS(p.Path)
	if err != nil {
		return Reading{}, err
	}
	info, err := fs.Meminfo()
	switch {
	case err != nil:
		return Reading{}, fmt.Errorf("read the host's memory: %w", err)
	case info.MemTotalBytes == nil || info.MemAvailableBytes == nil:
		return Reading{}, fmt.Errorf("%s/meminfo has no MemTotal or no MemAvailable", p.Path)
	}
	return Reading{Total: clamp(*info.MemTotalBytes), Available: clamp(*info.MemAvailableBytes)}, nil
}

func clamp(bytes uint64) int64 { return int64(min(bytes, math.MaxInt64)) }

// Reader reads the host's memory.
type Reader interface{ Read() (Reading, error) }

// Claims are the caches that are being connected: their memory is promised, and not taken yet.
type Claims struct {
	reader Reader

	mu       sync.Mutex
	promised int64
}

// NewClaims returns Claims on the memory that reader reads.
func NewClaims(reader Reader) *Claims { return &Claims{reader: reader} }

// Claim promises this many bytes, until done is called. It returns ErrShort if they are not free.
func (c *Claims) Claim(bytes int64) (done func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.reader.Read()
	if err != nil {
		return nil, err
	}
	if free := max(0, now.Free()-c.promised); bytes > free {
		return nil, fmt.Errorf("%w: it takes %s of memory, and %s are free for caches (%s of %s are available, %s of them are kept for "+
			"everything else, and %s are promised to caches that are being connected)", ErrShort, size(bytes), size(free),
			size(now.Available), size(now.Total), size(now.Reserve()), size(c.promised))
	}
	c.promised += bytes
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.promised -= bytes
	}), nil
}

// Free returns how many bytes more caches may take.
func (c *Claims) Free() (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, err := c.reader.Read()
	return max(0, now.Free()-c.promised), err
}

func size(bytes int64) string {
	for _, unit := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}} {
		if bytes >= unit.bytes {
			return fmt.Sprintf("%.1f %s", float64(bytes)/float64(unit.bytes), unit.name)
		}
	}
	return fmt.Sprintf("%.1f KiB", float64(bytes)/(1<<10))
}

// blockBytes and most are the step and the end of Largest's search.
const (
	blockBytes = 4096
	most       = 1 << 50
)

// Largest returns the size of the largest cache that takes at most this much memory, in bytes, to a
// block of 4096. need says how much a cache of a size takes; it never falls. bounded is false if even
// a PiB fits.
func Largest(memory int64, need func(cacheBytes int64) int64) (bytes int64, bounded bool) {
	if need(most) <= memory {
		return 0, false
	}
	over := sort.Search(most/blockBytes, func(i int) bool { return need(int64(i)*blockBytes) > memory })
	return int64(max(0, over-1)) * blockBytes, true
}

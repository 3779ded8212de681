// Package logtest has what the tests of the log share.
package logtest

import (
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// ErrPower means that the disk has no power.
var ErrPower = errors.New("the power is gone")

// SectorBytes is what a disk writes as a whole, or not at all.
const SectorBytes = 512

// Disk loses its power at a write that a test chooses. Of that write, any sectors may be stable.
type Disk struct {
	Stable []byte

	mu     sync.Mutex
	random *rand.Rand
	writes int
	cutAt  int
	dead   bool
}

// NewDisk returns a disk of zeros.
func NewDisk(blocks int, random *rand.Rand) *Disk {
	return &Disk{Stable: make([]byte, blocks*record.BlockBytes), random: random}
}

// ReadAt reads what is stable.
func (d *Disk) ReadAt(p []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return 0, ErrPower
	}
	return copy(p, d.Stable[at:]), nil
}

// WriteStable writes, or loses the power in it.
func (d *Disk) WriteStable(p []byte, at int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dead {
		return ErrPower
	}
	if d.writes++; d.writes != d.cutAt {
		copy(d.Stable[at:], p)
		return nil
	}
	d.dead = true
	whole := d.random.IntN(4) == 0 // it was complete, and only the answer is missing
	for i := 0; i < len(p); i += SectorBytes {
		if whole || d.random.IntN(2) == 0 {
			copy(d.Stable[at+int64(i):], p[i:i+SectorBytes])
		}
	}
	return ErrPower
}

// PowerOn brings the disk back. It loses its power at the given write from now on; 0: never.
func (d *Disk) PowerOn(cutAt int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dead, d.writes, d.cutAt = false, 0, cutAt
}

// Writes is the number of writes since PowerOn.
func (d *Disk) Writes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.writes
}

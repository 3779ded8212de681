package device

import (
	"fmt"

	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// Open returns the device of the log on a disk, with all writes that an earlier process on this host has answered: from the
// log, and from the memory if it goes with the log. A memory that does not is of an earlier life of the volume: other hosts
// have written since. What is in it is dropped, as after a power loss.
//
// Losses are of acknowledged data. They do not make Open fail: the caller decides.
func Open(disk ring.Disk, origin Origin, m *memory.Memory) (*Device, []ring.Loss, error) {
	name, err := ring.MemoryOf(disk)
	if err != nil {
		return nil, nil, err
	}
	if name != m.Name() {
		m.Renew()
	}
	log, losses, err := ring.OpenWith(disk, m.Name())
	if err != nil {
		return nil, nil, err
	}
	older, newer, err := load(log, m)
	if err != nil {
		return nil, nil, fmt.Errorf("read what an earlier process has answered: %w", err)
	}
	d := newDevice(log, origin, newer, older)
	d.memory = m
	if !older.Empty() {
		// The log may have it already, as its newest record. Then it gets it again: nothing came in between.
		d.flying, d.spare = older, nil
		d.sealed, d.written = 1, 1
	}
	if !newer.Empty() {
		d.written++
	}
	if m.NothingAnswered() {
		d.goOnThrough()
	} else {
		d.WriteThrough(m.Through()) // what it has found may have been acknowledged before
	}
	if until := m.Held(); until != 0 {
		d.mu.Lock()
		defer d.mu.Unlock()
		err = d.hold(until) // if it is over, its end is now
	}
	return d, losses, err
}

// goOnThrough goes on writing through, with batches to which nobody has an answer. What is in the log may have one.
func (d *Device) goOnThrough() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.through, d.owedIn = true, d.newest
	if d.flying != nil {
		d.flying.Unanswered()
	}
}

// load returns the batches of a memory. If only one has content, it is the newer one.
func load(log *ring.Log, m *memory.Memory) (older, newer *ring.Batch, err error) {
	if older, err = log.LoadBatch(m.Area(0)); err != nil {
		return nil, nil, err
	}
	if newer, err = log.LoadBatch(m.Area(1)); err != nil {
		return nil, nil, err
	}
	swap := newer.Number() < older.Number()
	if older.Empty() != newer.Empty() {
		swap = newer.Empty()
	}
	if swap {
		older, newer = newer, older
	}
	return older, newer, nil
}

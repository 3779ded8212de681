package engine

import (
	"context"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

// standbyDirt remembers what the look at a standby's disk found, and at which count of written blocks: as long as that count stands, so
// does what was found.
type standbyDirt struct {
	mu    sync.Mutex
	found map[string]dirtReading
}

type dirtReading struct {
	written int64
	at      time.Time
	bytes   *int64
}

func newStandbyDirt() *standbyDirt { return &standbyDirt{found: map[string]dirtReading{}} }

func (d *standbyDirt) drop(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.found, name)
}

func (d *standbyDirt) get(name string) (dirtReading, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, ok := d.found[name]
	return r, ok
}

func (d *standbyDirt) put(name string, r dirtReading) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found[name] = r
}

// known is what was found on a current copy to which nothing was written since, or nil.
func (d *standbyDirt) known(name string, st drbd.Status) *int64 {
	if last, ok := d.get(name); ok && st.Current() && last.written == st.DiskWrittenKiB {
		return last.bytes
	}
	return nil
}

// nothingFound is no count of written blocks: a look that failed says nothing of any.
const nothingFound = -1

// rereadAfter spares a busy standby's disk, and one that cannot be read: a reading that changes all the time is worth nothing anyway.
const rereadAfter = 5 * time.Second

// standbyDirty returns what a replica that is not connected holds dirty, or nil if that is not certain: the copy must be
// current, and nothing may have been written while it was read.
func (e *Engine) standbyDirty(ctx context.Context, v volume, st drbd.Status) *int64 {
	if !st.Current() || v.Phase != phaseReady {
		return nil
	}
	if last, ok := e.dirt.get(v.name()); ok && (last.written == st.DiskWrittenKiB || e.now().Sub(last.at) < rereadAfter) {
		return e.dirt.known(v.name(), st)
	}
	reading := dirtReading{written: nothingFound, at: e.now()}
	bytes, err := e.Caches.Dirty(ctx, e.localDisk(v))
	after, up, afterErr := e.replica(v.Minor)
	if err == nil && afterErr == nil && up && after.Current() && after.DiskWrittenKiB == st.DiskWrittenKiB {
		reading.written, reading.bytes = st.DiskWrittenKiB, &bytes
	}
	e.dirt.put(v.name(), reading)
	return reading.bytes
}

// standbyLook is how often standbys are looked for of which it is not known what they hold.
const standbyLook = 5 * time.Second

// watchStandbys looks at standbys' disks, one after the other, until ctx ends, so that a status of all volumes knows what they hold. While
// the peer is Primary that would have to be done again and again, and the peer's own status tells it.
func (e *Engine) watchStandbys(ctx context.Context) {
	for pause.For(ctx, standbyLook) == nil {
		e.lookAtStandbys(ctx)
	}
}

func (e *Engine) lookAtStandbys(ctx context.Context) {
	volumes := e.reg.list()
	if len(volumes) == 0 {
		return
	}
	table, err := e.States.Read()
	if err != nil {
		return
	}
	for _, v := range volumes {
		st := table.Devices[v.Minor]
		if st.Role != drbd.Secondary || st.PeerRole == drbd.Primary || e.locks.Running(v.name()) != "" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, changeTimeout)
		e.standbyDirty(ctx, v, st)
		cancel()
	}
}

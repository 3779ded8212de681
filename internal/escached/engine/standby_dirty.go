package engine

import (
	"context"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// standbyDirt remembers how many dirty bytes a scan of a standby's disk has found, and DRBD's count
// of written blocks at that time. The result is valid as long as that count does not change.
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

// known returns the dirty bytes of a current copy that was not written to since it was scanned, or
// nil.
func (d *standbyDirt) known(name string, st drbd.Status) *int64 {
	if last, ok := d.get(name); ok && st.Current() && last.written == st.DiskWrittenKiB {
		return last.bytes
	}
	return nil
}

// nothingFound stands in place of the count of written blocks after a scan that failed.
const nothingFound = -1

// rereadAfter is the shortest time between two scans of one disk. It spares disks that are written
// to all the time, or that cannot be read.
const rereadAfter = 5 * time.Second

// standbyDirty returns the dirty bytes of a replica that is not connected, or nil if they are not
// certain: the copy must be current, and nothing may have been written while the disk was scanned.
func (e *Engine) standbyDirty(ctx context.Context, v volume.Volume, st drbd.Status) *int64 {
	if !st.Current() || v.Phase != volume.Ready {
		return nil
	}
	if last, ok := e.dirt.get(v.Name()); ok && (last.written == st.DiskWrittenKiB || e.now().Sub(last.at) < rereadAfter) {
		return e.dirt.known(v.Name(), st)
	}
	reading := dirtReading{written: nothingFound, at: e.now()}
	bytes, err := e.Caches.Dirty(ctx, e.localDisk(v))
	after, up, afterErr := e.replica(v.Minor)
	if err == nil && afterErr == nil && up && after.Current() && after.DiskWrittenKiB == st.DiskWrittenKiB {
		reading.written, reading.bytes = st.DiskWrittenKiB, &bytes
	}
	e.dirt.put(v.Name(), reading)
	return reading.bytes
}

// standbyPoll is how often watchStandbys looks for standbys that were not scanned yet.
const standbyPoll = 5 * time.Second

// watchStandbys scans standbys' disks, one after the other, until ctx ends, so that a status of all
// volumes has their dirty bytes. It leaves out standbys whose peer is Primary: they change all the
// time, and the peer's own status has the number.
func (e *Engine) watchStandbys(ctx context.Context) {
	for pause.For(ctx, standbyPoll) == nil {
		e.scanStandbys(ctx)
	}
}

func (e *Engine) scanStandbys(ctx context.Context) {
	volumes := e.reg.List()
	if len(volumes) == 0 {
		return
	}
	table, err := e.States.Read()
	if err != nil {
		return
	}
	for _, v := range volumes {
		st := table.Devices[v.Minor]
		if st.Role != drbd.Secondary || st.PeerRole == drbd.Primary || e.locks.Running(v.Name()) != "" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, changeTimeout)
		e.standbyDirty(ctx, v, st)
		cancel()
	}
}

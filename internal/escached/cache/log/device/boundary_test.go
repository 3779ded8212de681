package device

import (
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// unflushed fills a record with blocks from 5 on. It ends no interval.
func unflushed(d *Device) error {
	for at := range uint64(record.LongestBlocks(ringBlocks)) { // the last one has no room
		if err := d.Write(5+at, block(1)); err != nil {
			return err
		}
	}
	return nil
}

// keepsOrder writes a block for which the image has no earlier place, and writes back what is on the disk: block 5 was stable before.
func keepsOrder(t *testing.T, d *Device, disk *logtest.Disk, origin *image) {
	t.Helper()
	must(t, d.Write(0, block(2)))
	must(t, d.Flush())
	d = open(t, disk, &watched{image: origin, after: func() error {
		if origin.has(0) == 2 && origin.has(5) != 1 {
			t.Error("the image has a later write without the earlier one")
		}
		return nil
	}})
	d.StrictOrder(true)
	must(t, d.WriteBack(t.Context()))
	if origin.has(0) != 2 || origin.has(5) != 1 {
		t.Errorf("the image has %d and %d", origin.has(0), origin.has(5))
	}
}

// All that a process finds is stable: a flush needs no record for that. It is an interval all the same.
func TestWhatAProcessFindsIsAnInterval(t *testing.T) {
	d, disk, origin := start(t)
	must(t, unflushed(d))
	d = open(t, disk, origin)
	must(t, d.Flush())
	keepsOrder(t, d, disk, origin)
}

// The record is under way when somebody asks for what is in it to be stable.
func TestAFlushThatFindsItsRecordUnderWayEndsTheInterval(t *testing.T) {
	d, gate := openSlow(t)
	written := begin(func() error { return unflushed(d) })
	<-gate.begun
	flushed := begin(d.Flush)
	waitUntil(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.wanted > 0
	})
	go func() {
		for gate.goOn <- struct{}{}; ; gate.goOn <- struct{}{} {
			select {
			case <-gate.begun:
			case <-t.Context().Done():
				return
			}
		}
	}()
	must(t, ends(t, flushed))
	must(t, ends(t, written))
	keepsOrder(t, d, gate.disk.(*logtest.Disk), d.origin.(*image))
}

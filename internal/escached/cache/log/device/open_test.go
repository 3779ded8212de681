package device

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// hosts are two hosts that can have the volume, each with a memory of its own.
type hosts struct {
	t      *testing.T
	disk   *logtest.Disk
	image  *image
	memory [2]string
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	_, disk, image := start(t)
	dir, err := os.MkdirTemp("/dev/shm", "escache-device") //nolint:usetesting // t.TempDir is on a disk
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &hosts{t: t, disk: disk, image: image, memory: [2]string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}}
}

// process is one that serves the volume on a host.
func (h *hosts) process(host int) (d *Device, kill func()) {
	h.t.Helper()
	m, err := memory.Open(h.memory[host])
	must(h.t, err)
	d, losses, err := Open(h.disk, h.image, m)
	if err != nil || len(losses) > 0 {
		h.t.Fatalf("open: %v, %v", losses, err)
	}
	return d, func() { must(h.t, m.Close()) } // nothing of the device does anything any more
}

func TestWritesThatWereAnsweredOutliveTheProcess(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	must(t, d.Write(1, block(1)))
	must(t, d.Write(2, block(1)))
	must(t, d.Flush())
	must(t, d.Write(2, block(2)))
	must(t, d.Zero(1, 1, true))
	must(t, d.Write(3, block(3)))
	kill()
	for range 2 { // the next one is killed too
		d, kill = h.process(0)
		if read(t, d, 1) != 0 || read(t, d, 2) != 2 || read(t, d, 3) != 3 {
			t.Errorf("blocks 1, 2, 3 have %d, %d, %d", read(t, d, 1), read(t, d, 2), read(t, d, 3))
		}
		kill()
	}
	d, kill = h.process(0)
	must(t, d.Flush())
	kill()
	must(t, os.Remove(h.memory[0])) // as after a power loss
	d, _ = h.process(0)
	if read(t, d, 1) != 0 || read(t, d, 2) != 2 || read(t, d, 3) != 3 {
		t.Errorf("after the flush blocks 1, 2, 3 have %d, %d, %d", read(t, d, 1), read(t, d, 2), read(t, d, 3))
	}
}

// It would put old data over what another host has written.
func TestAMemoryOfAnEarlierLifeIsDropped(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	must(t, d.Write(1, block(1)))
	kill()
	d, kill = h.process(1)
	if read(t, d, 1) != 0 {
		t.Errorf("the other host reads %d", read(t, d, 1))
	}
	must(t, d.Write(1, block(2)))
	must(t, d.Flush())
	kill()
	d, kill = h.process(0)
	if read(t, d, 1) != 2 {
		t.Errorf("the first host reads %d from what it had before", read(t, d, 1))
	}
	kill()
}

// The process was killed while a record was under way: the log has it or not, and the next one has begun to fill.
func TestBothBatchesOutliveTheProcess(t *testing.T) {
	for _, inLog := range []bool{false, true} {
		h := newHosts(t)
		d, kill := h.process(0)
		must(t, d.Write(1, block(1)))
		must(t, d.Write(2, block(1)))
		d.flying, d.pending, d.spare = d.pending, d.spare, nil // as in commit
		d.pending.Begin(d.flying.Number() + 1)
		must(t, d.Write(2, block(2)))
		if inLog {
			_, err := d.log.Append(d.flying)
			must(t, err)
		}
		kill()
		d, kill = h.process(0)
		if read(t, d, 1) != 1 || read(t, d, 2) != 2 {
			t.Errorf("in the log: %t: blocks 1 and 2 have %d and %d", inLog, read(t, d, 1), read(t, d, 2))
		}
		must(t, d.Write(3, block(3)))
		must(t, d.Flush())
		must(t, d.WriteBack(t.Context()))
		if h.image.has(1) != 1 || h.image.has(2) != 2 || h.image.has(3) != 3 {
			t.Errorf("in the log: %t: the image has %d, %d, %d", inLog, h.image.has(1), h.image.has(2), h.image.has(3))
		}
		kill()
	}
}

// A log that fails takes nothing out of the memory: the next process may be luckier.
func TestAWriteThatTheLogRefusedOutlivesTheProcess(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	must(t, d.Write(1, block(1)))
	h.disk.PowerOn(1)
	if err := d.Flush(); err == nil {
		t.Fatal("the log took the record")
	}
	kill()
	h.disk.PowerOn(0)
	d, kill = h.process(0)
	defer kill()
	if read(t, d, 1) != 1 {
		t.Errorf("block 1 has %d", read(t, d, 1))
	}
	must(t, d.Flush())
}

func TestADamagedMemoryIsNotUsed(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	must(t, d.Write(1, block(1)))
	kill()
	m, err := memory.Open(h.memory[0])
	must(t, err)
	defer m.Close()
	for i := range memory.Areas {
		m.Area(i)[0] = 9 // blocks that no extent has
	}
	if _, _, err := Open(h.disk, h.image, m); !errors.Is(err, ring.ErrBadArea) {
		t.Errorf("got %v", err)
	}
}

// The record of a volume that writes through says that everything is in Ceph. A write that was under way when the process
// was killed has no answer, and the next process gives it none before the image has it. If the host is lost before, the
// other copy must not be dirty: its volume could not be given to a third host.
func TestAWriteThatNobodyHasAnAnswerToIsNotDirtyAfterTheProcess(t *testing.T) {
	write := func(t *testing.T, d *Device, at uint64) { // as Write does before it waits
		t.Helper()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.pending.Write(at, block(byte(at))) != 1 {
			t.Fatal("no room")
		}
		d.written++
	}
	seal := func(d *Device) { // as in commit
		d.flying, d.pending, d.spare = d.pending, d.spare, nil
		d.pending.Begin(d.flying.Number() + 1)
	}
	answered := func(t *testing.T, d *Device) { must(t, d.Write(1, block(1))) }
	for name, tc := range map[string]struct {
		before func(t *testing.T, d *Device)
		want   uint64 // dirty on the disk while the image has not taken it
	}{
		"it waits": {func(t *testing.T, d *Device) { d.WriteThrough(true); write(t, d, 5) }, 0},
		"it is on its way to the log, and another one waits": {func(t *testing.T, d *Device) {
			d.WriteThrough(true)
			write(t, d, 5)
			seal(d)
			write(t, d, 6)
		}, 0},
		"what was answered before is in the image": {func(t *testing.T, d *Device) {
			answered(t, d)
			d.WriteThrough(true)
			must(t, d.Write(2, block(2)))
			write(t, d, 5)
		}, 0},
		"it was told so twice": {func(t *testing.T, d *Device) { d.WriteThrough(true); d.WriteThrough(true); write(t, d, 5) }, 0},
		"something was answered before": {func(t *testing.T, d *Device) {
			answered(t, d)
			d.WriteThrough(true)
			write(t, d, 5)
		}, 2},
		"it does not write through any more": {func(t *testing.T, d *Device) {
			d.WriteThrough(true)
			d.WriteThrough(false)
			answered(t, d)
			d.WriteThrough(true)
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHosts(t)
			d, kill := h.process(0)
			tc.before(t, d)
			kill()
			m, err := memory.Open(h.memory[0])
			must(t, err)
			defer m.Close()
			slow := &slowOrigin{image: h.image, begun: make(chan struct{}), goOn: make(chan struct{})}
			d, losses, err := Open(h.disk, slow, m)
			if err != nil || len(losses) > 0 {
				t.Fatalf("open: %v, %v", losses, err)
			}
			dirty(t, d, "found", tc.want > 0)
			written := make(chan error)
			go func() { written <- d.Write(5, block(5)) }() // the kernel repeats it
			<-slow.begun
			if n := dirtyOn(t, h.disk); n != tc.want {
				t.Errorf("%d blocks are dirty on the disk, want %d", n, tc.want)
			}
			for done := false; !done; {
				select {
				case slow.goOn <- struct{}{}:
				case <-slow.begun:
				case err := <-written:
					must(t, err)
					done = true
				}
			}
			dirty(t, d, "the image has it", false)
			if h.image.has(5) != 5 || dirtyOn(t, h.disk) != 0 {
				t.Errorf("the image has %d, and %d blocks are dirty", h.image.has(5), dirtyOn(t, h.disk))
			}
		})
	}
}

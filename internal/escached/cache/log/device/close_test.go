package device

import (
	"errors"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// Another process may have the volume then. What this one still wrote would be older than what that one has written.
func TestAClosedDeviceWritesNothingToTheImage(t *testing.T) {
	for name, call := range map[string]func(d *Device) error{
		"Step":      func(d *Device) error { _, err := d.Step(); return err },
		"Hold":      func(d *Device) error { return d.Hold(t.Context(), time.Minute) },
		"WriteBack": func(d *Device) error { return d.WriteBack(t.Context()) },
	} {
		for _, failed := range []bool{false, true} {
			d, _, origin := start(t)
			must(t, d.Write(1, block(1)))
			must(t, d.Flush())
			if failed {
				d.mu.Lock()
				d.fail(errors.New("the log's disk has failed"))
				d.mu.Unlock()
			}
			d.Close()
			if err := call(d); !errors.Is(err, ErrClosed) || origin.has(1) != 0 {
				t.Errorf("%s, failed before %t: %v, and the image has %d", name, failed, err, origin.has(1))
			}
		}
	}
}

// The next process has the memory then, and this one may have unmapped it.
func TestAClosedDeviceLeavesTheMemoryAlone(t *testing.T) {
	for name, call := range map[string]func(d *Device){
		"the hold ends": func(d *Device) { d.release(d.until) },
		"Resume":        func(d *Device) { d.Resume() },
		"WriteThrough":  func(d *Device) { d.WriteThrough(true) },
		// These are requests that took longer than the process before was given to end.
		"Write": func(d *Device) { closed(t, d.Write(3, block(3))) },
		"Zero":  func(d *Device) { closed(t, d.Zero(3, 1, false)) },
		"Read":  func(d *Device) { closed(t, d.Read(1, ring.AlignedBytes(record.BlockBytes))) },
		"Flush": func(d *Device) { closed(t, d.Flush()) },
	} {
		h := newHosts(t)
		d, kill := h.process(0)
		must(t, d.Hold(t.Context(), time.Hour))
		must(t, d.Write(1, block(1)))
		d.Close()
		d.Wait()
		kill()
		d2, kill := h.process(0)
		until := d2.memory.Held()
		call(d)
		if d2.memory.Held() != until || until == 0 || d2.memory.Through() {
			t.Errorf("%s: the hold lasts until %d, not %d, and through is %t", name, d2.memory.Held(), until, d2.memory.Through())
		}
		kill()
		d3, kill := h.process(0)
		if read(t, d3, 1) != 1 || read(t, d3, 3) != 0 {
			t.Errorf("%s: blocks 1 and 3 have %d and %d", name, read(t, d3, 1), read(t, d3, 3))
		}
		kill()
	}
}

func closed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrClosed) {
		t.Errorf("a closed device answers %v", err)
	}
}

// Hold may still bring records to the image when the device is closed.
func TestAHoldThatAClosedDeviceBeginsFails(t *testing.T) {
	h := newHosts(t)
	d, kill := h.process(0)
	defer kill()
	d.Close()
	d.mu.Lock()
	err := d.hold(time.Hour)
	d.mu.Unlock()
	if !errors.Is(err, ErrClosed) || d.watchdog != nil {
		t.Errorf("%v, and its end is waited for: %t", err, d.watchdog != nil)
	}
}

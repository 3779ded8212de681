package device

import (
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// dirtyOn is what somebody finds on the disk who was not there: after a power loss, or on another host.
func dirtyOn(t *testing.T, disk *logtest.Disk) uint64 {
	t.Helper()
	log, losses, err := ring.Inspect(disk)
	if err != nil || len(losses) > 0 {
		t.Fatalf("inspect: %v, %v", losses, err)
	}
	return log.State().Dirty
}

// Whoever is told that nothing is dirty may use the image without the log. So the disk must say the same.
func TestWhatTheImageHasIsNotDirtyOnTheDisk(t *testing.T) {
	for name, bring := range map[string]func(d *Device) error{
		"written back": func(d *Device) error { return d.WriteBack(t.Context()) },
		"step by step": func(d *Device) error {
			for more := true; more; {
				var err error
				if more, err = d.Step(); err != nil {
					return err
				}
			}
			return nil
		},
		"held":            func(d *Device) error { return d.Hold(t.Context(), 1<<40) },
		"written through": func(d *Device) error { d.WriteThrough(true); return d.Write(5, block(5)) },
	} {
		d, disk, _ := start(t)
		must(t, d.Write(3, block(3)))
		must(t, d.Flush())
		if s := d.State(); s.Dirty != 1 || dirtyOn(t, disk) != 1 {
			t.Errorf("%s: before, %d blocks are dirty, and %d on the disk", name, s.Dirty, dirtyOn(t, disk))
		}
		must(t, bring(d))
		if s := d.State(); s.Dirty != 0 || s.Bringing != 0 || dirtyOn(t, disk) != 0 {
			t.Errorf("%s: %d blocks are dirty, %d are on their way, and %d are dirty on the disk", name, s.Dirty, s.Bringing, dirtyOn(t, disk))
		}
		d.Close()
	}
}

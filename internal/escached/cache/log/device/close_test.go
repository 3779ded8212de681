package device

import (
	"errors"
	"testing"
	"time"
)

// Another process may have the volume then. What this one still wrote would be older than what that one has written.
func TestAClosedDeviceWritesNothingToTheImage(t *testing.T) {
	for name, call := range map[string]func(d *Device) error{
		"Step":      func(d *Device) error { _, err := d.Step(); return err },
		"Hold":      func(d *Device) error { return d.Hold(t.Context(), time.Minute) },
		"WriteBack": func(d *Device) error { return d.WriteBack(t.Context()) },
	} {
		d, _, origin := start(t)
		must(t, d.Write(1, block(1)))
		must(t, d.Flush())
		d.Close()
		if err := call(d); !errors.Is(err, ErrClosed) || origin.has(1) != 0 {
			t.Errorf("%s: %v, and the image has %d", name, err, origin.has(1))
		}
	}
}

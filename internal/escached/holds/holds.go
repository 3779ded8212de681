// Package holds records which volumes are held, so that a hold also ends if escached is restarted
// during it.
package holds

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Records stores which volumes are held and until when, in one file each under /run. A record must
// survive this process, so that the next one releases the hold. It must not survive a reboot, which
// ends the suspension in the kernel.
type Records struct {
	dir string
	mu  sync.Mutex
	// none is true while it is known that nothing is held, which is nearly always. It saves reading
	// the directory.
	none bool
}

// New returns the records in a directory, which need not exist yet.
func New(dir string) *Records { return &Records{dir: dir} }

// Record is one hold.
type Record struct {
	escache.VolumeRef

	// Until is when the hold ends, as callers are told. Nothing here relies on it: the clock may jump.
	Until time.Time `json:"until"`
	// Ends is when it ends, since the host booted. The watchdog goes by this.
	Ends time.Duration `json:"ends"`
	// Paused says that the caller relies on I/O resting: when that goes on, the hold is over.
	Paused bool `json:"paused,omitempty"`
	// Complete is set once the image has everything. Before that I/O may rest already.
	Complete bool `json:"complete,omitempty"`
}

func (h *Records) path(name string) string { return filepath.Join(h.dir, name) }

// Get returns a volume's hold, or nil.
func (h *Records) Get(name string) *Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.none {
		return nil
	}
	r, err := h.read(name)
	if err != nil {
		return nil
	}
	return &r
}

func (h *Records) read(name string) (Record, error) {
	var r Record
	data, err := os.ReadFile(h.path(name))
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// Put records a hold, or its new end.
func (h *Records) Put(r Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.none = false
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(h.dir, 0o700)
	}
	tmp := h.path("." + volume.NameOf(r.VolumeRef))
	if err == nil {
		err = os.WriteFile(tmp, data, 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, h.path(volume.NameOf(r.VolumeRef)))
	}
	if err != nil {
		return fmt.Errorf("record the hold: %w", err)
	}
	return nil
}

// Drop forgets a volume's hold. Forgetting what is not there succeeds.
func (h *Records) Drop(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.Remove(h.path(name)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("forget the hold: %w", err)
	}
	return nil
}

// List returns all holds.
func (h *Records) List() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.none {
		return nil
	}
	entries, err := os.ReadDir(h.dir)
	var out []Record
	for _, entry := range entries {
		if r, err := h.read(entry.Name()); err == nil && strings.HasPrefix(entry.Name(), volume.NamePrefix) {
			out = append(out, r)
		}
	}
	h.none = len(out) == 0 && (err == nil || os.IsNotExist(err))
	return out
}

// Package holds records which volumes are held, so that a hold also ends if escached is restarted
// during it.
package holds

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
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
	// held has every hold that this process has made or read, by the volume's name.
	held map[string]Record
	// complete is true once every record has been read. Later only this process changes them.
	complete bool
}

// New returns the records in a directory, which need not exist yet.
func New(dir string) *Records { return &Records{dir: dir, held: map[string]Record{}} }

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
	h.readAll()
	if r, ok := h.held[name]; ok {
		return &r
	}
	return nil
}

// readAll reads what an earlier process has recorded. What cannot be read now, for example because too many files are open, is
// read next time. A record that is no JSON is none.
func (h *Records) readAll() {
	if h.complete {
		return
	}
	entries, err := os.ReadDir(h.dir)
	complete := err == nil || os.IsNotExist(err)
	for _, entry := range entries {
		name := entry.Name()
		if _, ok := h.held[name]; ok || !strings.HasPrefix(name, volume.NamePrefix) {
			continue
		}
		var r Record
		data, err := os.ReadFile(h.path(name))
		switch {
		case err != nil:
			complete = complete && os.IsNotExist(err)
		case json.Unmarshal(data, &r) == nil:
			h.held[name] = r
		}
	}
	h.complete = complete
}

// Put records a hold, or its new end.
func (h *Records) Put(r Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(h.dir, 0o700)
	}
	name := volume.NameOf(r.VolumeRef)
	tmp := h.path("." + name)
	if err == nil {
		err = os.WriteFile(tmp, data, 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, h.path(name))
	}
	if err != nil {
		return fmt.Errorf("record the hold: %w", err)
	}
	h.held[name] = r
	return nil
}

// Drop forgets a volume's hold. Forgetting what is not there succeeds.
func (h *Records) Drop(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.Remove(h.path(name)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("forget the hold: %w", err)
	}
	delete(h.held, name)
	return nil
}

// List returns all holds.
func (h *Records) List() []Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readAll()
	return slices.Collect(maps.Values(h.held))
}

package engine

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// holds records which volumes are held and until when, in one file each under /run. The record must
// survive this process, so that the next one releases the hold. It must not survive a reboot, which
// ends the suspension in the kernel.
type holds struct {
	dir string
	mu  sync.Mutex
	// none is true while it is known that nothing is held, which is nearly always. It saves reading
	// the directory.
	none bool
}

func newHolds(dir string) *holds { return &holds{dir: dir} }

type holdRecord struct {
	escache.VolumeRef

	Until time.Time `json:"until"`
}

func (h *holds) path(name string) string { return filepath.Join(h.dir, name) }

// until returns when a volume's hold ends, or nil.
func (h *holds) until(name string) *time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.none {
		return nil
	}
	r, err := h.read(name)
	if err != nil {
		return nil
	}
	return &r.Until
}

func (h *holds) read(name string) (holdRecord, error) {
	var r holdRecord
	data, err := os.ReadFile(h.path(name)) //nolint:gosec // the directory is ours, and so are the names in it
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

func (h *holds) put(r holdRecord) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.none = false
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(h.dir, 0o700)
	}
	tmp := h.path("." + nameOf(r.VolumeRef))
	if err == nil {
		err = os.WriteFile(tmp, data, 0o600)
	}
	if err == nil {
		err = os.Rename(tmp, h.path(nameOf(r.VolumeRef)))
	}
	if err != nil {
		return fmt.Errorf("record the hold: %w", err)
	}
	return nil
}

func (h *holds) drop(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := os.Remove(h.path(name)); err != nil && !os.IsNotExist(err) { //nolint:gosec // as above
		return fmt.Errorf("forget the hold: %w", err)
	}
	return nil
}

// list returns all holds.
func (h *holds) list() []holdRecord {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.none {
		return nil
	}
	entries, err := os.ReadDir(h.dir)
	var out []holdRecord
	for _, entry := range entries {
		if r, err := h.read(entry.Name()); err == nil && strings.HasPrefix(entry.Name(), namePrefix) {
			out = append(out, r)
		}
	}
	h.none = len(out) == 0 && (err == nil || os.IsNotExist(err))
	return out
}

package escachetest

import (
	"context"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// recovery is how long a service that starts looks at its disks.
const recovery = 200 * time.Millisecond

// Restart starts the service of a host again. For a moment it does not know what is on the host.
func (w *World) Restart(_ context.Context, host string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, h := range w.Hosts {
		if h.Name != host {
			continue
		}
		h.recovering = true
		for _, r := range h.replicas {
			if w.breaks("a restart loses the epoch") {
				r.epoch = 0
			}
		}
		time.AfterFunc(recovery, func() {
			defer h.lock()()
			h.recovering = false
		})
		return nil
	}
	return fmt.Errorf("there is no host %s", host)
}

// unknown reports whether the host answers as if it had not found a volume. If it does not know it, the error
// says so.
func (h *Host) unknown(ref escache.VolumeRef) (missing bool, err error) {
	one := ref.Pool != ""
	switch {
	case !h.recovering:
		return false, nil
	case one && h.w.breaks("a service answers before it has recovered"), !one && h.w.breaks("a service lists what it has found so far"):
		return true, nil
	}
	return false, fail(escache.CodeRecovering, "the service has just started")
}

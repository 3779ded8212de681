// Package watch has the background work on volumes that no verb asks for: it reconnects replicas,
// asks the arbiter again about frozen I/O, and cleans up what verbs have left behind. Each of them
// locks a volume while it works on it, as a verb does.
package watch

import (
	"log/slog"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Watcher does the background work on a host's volumes.
type Watcher struct {
	*host.Host

	log *slog.Logger
}

// New returns a Watcher of a host.
func New(h *host.Host, log *slog.Logger) *Watcher { return &Watcher{Host: h, log: log} }

// eachReplica calls do for every replica, with what DRBD says of it, and whether DRBD runs it. It costs one
// read of /proc/drbd, and nothing on a host without replicas.
func (w *Watcher) eachReplica(do func(v volume.Volume, st drbd.Status, up bool)) {
	volumes := w.Volumes.List()
	if len(volumes) == 0 {
		return
	}
	table, err := w.States.Read()
	if err != nil {
		return // the next round looks again
	}
	for _, v := range volumes {
		st, up := table.Devices[v.Minor]
		do(v, st, up)
	}
}

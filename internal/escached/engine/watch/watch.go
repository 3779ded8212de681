// Package watch has the background work on volumes that no verb asks for: it reconnects replicas,
// asks the arbiter again about frozen I/O, and cleans up what verbs have left behind. Each of them
// locks a volume while it works on it, as a verb does.
package watch

import (
	"context"
	"log/slog"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Watcher does the background work on a host's volumes.
type Watcher struct {
	*host.Host

	hostID func() string
	log    *slog.Logger
}

// New returns a Watcher of a host. hostID returns the host's identity, or "" while it is not known.
func New(h *host.Host, hostID func() string, log *slog.Logger) *Watcher {
	return &Watcher{Host: h, hostID: hostID, log: log}
}

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

// eachDevice calls do for every volume with the state of its device, which is empty if there is none. It costs a look at the
// states of devices, and nothing on a host without replicas.
func (w *Watcher) eachDevice(ctx context.Context, do func(v volume.Volume, dev cache.State)) {
	volumes := w.Volumes.List()
	if len(volumes) == 0 {
		return
	}
	devices, err := w.Caches.States(ctx, volume.NamePrefix)
	if err != nil {
		return // the next round looks again
	}
	for _, v := range volumes {
		do(v, devices[v.Name()])
	}
}

// withDevice locks a volume for work, and calls do if its device is still wanted then. It does nothing while a verb is
// running: the next round looks again.
func (w *Watcher) withDevice(
	ctx context.Context, v volume.Volume, work string, limit time.Duration,
	wanted func(v volume.Volume, dev cache.State) bool, do func(ctx context.Context, v volume.Volume) error,
) error {
	ctx, done, err := w.TryBegin(ctx, v.VolumeRef, work, limit)
	if err != nil {
		return nil
	}
	defer done()
	now, known := w.Volumes.Get(v.Name())
	dev, connected, err := w.Device(ctx, v.Name())
	if err != nil || !known || !connected || !wanted(now, dev) {
		return err
	}
	return do(ctx, now)
}

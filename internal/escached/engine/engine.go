// Package engine implements the verbs of the escache API on this host, one file each. The steps
// that verbs share are in package host. dev_connect_promote.go and put_replica_repeer.go are parts
// of those verbs. recover.go runs at the start, and watch.go starts the background work.
//
// All state is on the disks and in the kernel: LVM tags, DRBD metadata, the header of each cache,
// the kernel's tables. What the engine keeps in memory it can read again, so a restart loses
// nothing and does not touch I/O.
package engine

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/engine/metrics"
	"github.com/escache/escache-csi/internal/escached/engine/outdated"
	"github.com/escache/escache-csi/internal/escached/engine/space"
	"github.com/escache/escache-csi/internal/escached/engine/standby"
	"github.com/escache/escache-csi/internal/escached/engine/uncached"
	"github.com/escache/escache-csi/internal/escached/engine/watch"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/exported"
)

// Engine implements the API's verbs on this host.
type Engine struct {
	*host.Host

	version string
	// recoverAtOnce is how many volumes Recover takes up at the same time.
	recoverAtOnce int

	log      *slog.Logger
	flushes  *flushes
	turns    *turns
	standbys *standby.Scanner
	metrics  *metrics.Metrics
	outdated *outdated.Marker
	uncached *uncached.Maps
	watcher  *watch.Watcher
	space    *space.Space
	hostID   atomic.Pointer[string]
	faults   sync.Map // by name of the LV: the error of its recovery
	lost     sync.Map // by name of the LV: this host has lost the secret of its link
	damaged  sync.Map // by name of the LV: what was wrong with the copy when somebody looked last, a damage
	erased   sync.Map // by name of the LV: how many bytes of a removed replica are zeroed, int64
	erasing  sync.Mutex
}

// New returns an engine for a host.
func New(h *host.Host, version string, log *slog.Logger) *Engine {
	e := &Engine{
		Host: h, version: version, recoverAtOnce: 4, log: log, flushes: newFlushes(), turns: newTurns(),
		outdated: outdated.New(h, log), uncached: uncached.New(h, log),
	}
	e.watcher = watch.New(h, e.HostID, log)
	now := func() time.Time { return h.Now() }
	e.space = space.New(h.Store, now)
	e.standbys = standby.New(standby.Sources{
		Volumes: h.Volumes.List, Replicas: h.States.Read, Now: now,
		Scan: func(ctx context.Context, v volume.Volume) (int64, error) {
			return h.Cache(v).Dirty(ctx, h.LocalDisk(v))
		},
		ReadTime: h.ReadTime,
		Busy:     func(name string) bool { return h.Running(name) != "" },
	})
	e.metrics = metrics.New(e.Node, func(ctx context.Context) ([]volume.Reading, error) { return e.read(ctx, h.Volumes.List()) })
	return e
}

// HostID returns this host's identity: the UUID of the volume group. It is empty before the first
// reading, and stays the same until escached is started again.
func (e *Engine) HostID() string {
	if id := e.hostID.Load(); id != nil {
		return *id
	}
	return ""
}

// isUncached reports whether a verb is about an image without a cache. If there is a replica here, it is
// about that, whatever a record of the other kind says.
func (e *Engine) isUncached(ref escache.VolumeRef) bool {
	name := volume.NameOf(ref)
	_, replica := e.Volumes.Get(name)
	_, unreadable := e.Volumes.Unreadable()[name]
	return !replica && !unreadable && e.uncached.Has(ref)
}

// Collectors returns all metrics of the engine.
func (e *Engine) Collectors() []prometheus.Collector {
	return append(e.metrics.Collectors(), exported.BuildInfo("escached", e.version))
}

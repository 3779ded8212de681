// Package engine implements the verbs of the escache API on this host, one file each. It takes the
// layers below as interfaces (layers.go). Steps that verbs share are in verb.go (how a verb
// begins), replica.go (the DRBD replica) and device.go (the assembled device). dev_connect_promote.go
// and put_replica_repeer.go are parts of those verbs. The watch_*.go files have the background work.
//
// All state is on the disks and in the kernel: LVM tags, DRBD metadata, the header of each cache,
// the kernel's tables. What the engine keeps in memory it can read again, so a restart loses
// nothing and does not touch I/O.
package engine

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/engine/holds"
	"github.com/escache/escache-csi/internal/escached/engine/metrics"
	"github.com/escache/escache-csi/internal/escached/engine/space"
	"github.com/escache/escache-csi/internal/escached/engine/standby"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/operation"
)

// Engine implements the API's verbs on this host.
type Engine struct {
	Layers

	cfg     escached.Config
	version string
	// uname is this host's name as drbdadm sees it.
	uname     string
	fencePeer string

	log      *slog.Logger
	now      func() time.Time
	reg      *volume.Registry
	locks    *operation.Locks
	holds    *holds.Records
	flushes  *flushes
	standbys *standby.Scanner
	metrics  *metrics.Metrics
	unasked  *unasked

	// turns bounds how many replicas are laid or removed at the same time: that starts many
	// programs, and no I/O waits for it.
	turns  *semaphore.Weighted
	space  *space.Space
	faults sync.Map // by name of the LV: the error of its recovery
}

// New returns an engine over layers. uname is this host's name in DRBD's resource files. fencePeer
// is the command line that the kernel runs before a replica goes on without its peer.
func New(cfg escached.Config, version, uname, fencePeer string, layers Layers, log *slog.Logger) *Engine {
	e := &Engine{
		Layers: layers, cfg: cfg, version: version, uname: uname, fencePeer: fencePeer, log: log, now: time.Now,
		reg: volume.NewRegistry(), locks: operation.NewLocks(time.Now), holds: holds.New(filepath.Join(cfg.RunDir, "holds")),
		flushes: newFlushes(),
		unasked: newUnasked(), turns: semaphore.NewWeighted(int64(max(2, runtime.NumCPU()))),
	}
	now := func() time.Time { return e.now() }
	e.space = space.New(layers.Store, now)
	e.standbys = standby.New(standby.Sources{
		Volumes: e.reg.List, Replicas: layers.States.Read, Now: now,
		Scan: func(ctx context.Context, v volume.Volume) (int64, error) {
			return layers.Caches.Dirty(ctx, e.localDisk(v))
		},
		Busy: func(name string) bool { return e.locks.Running(name) != "" },
	})
	e.metrics = metrics.New(e.Node, func(ctx context.Context) ([]volume.Reading, error) { return e.read(ctx, e.reg.List()) })
	return e
}

// Collectors returns all metrics of the engine.
func (e *Engine) Collectors() []prometheus.Collector { return e.metrics.Collectors() }

// retag stores a changed volume: first in the tags on the disk, then in memory.
func (e *Engine) retag(ctx context.Context, from, to volume.Volume) error {
	if from == to {
		return nil
	}
	if err := e.Store.Retag(ctx, from.Name(), from.Tags(), to.Tags()); err != nil {
		return err
	}
	e.reg.Put(to)
	return nil
}

func sameIP(a, b string) bool {
	x, y := net.ParseIP(a), net.ParseIP(b)
	return x != nil && x.Equal(y)
}

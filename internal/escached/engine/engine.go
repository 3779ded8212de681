// Package engine does the verbs of the escache API on this host, each in a file of its own, over layers that it takes as interfaces: LVM,
// DRBD, krbd, dm-writecache and the kernel.
//
// Its state is on the disks: LVM tags, DRBD metadata, the header at the start of each cache, and the kernel's tables.
// Nothing is kept in memory that a restart could lose, and a restart never touches I/O.
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

	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/operation"
)

// Engine does the API's verbs on this host.
type Engine struct {
	Layers

	cfg     escached.Config
	version string
	// uname is this host's name as drbdadm sees it.
	uname     string
	fencePeer string

	log     *slog.Logger
	now     func() time.Time
	reg     *registry
	locks   *operation.Locks
	holds   *holds
	flushes *flushes
	dirt    *standbyDirt
	metrics *measures
	unasked *unasked

	// turns are for verbs that start many programs and that nobody's I/O waits for.
	turns  *semaphore.Weighted
	space  *space
	faults sync.Map // name of an LV → why its tags or its recovery failed
}

// New wires an engine. fencePeer is the command line that the kernel runs before a replica goes on without its peer.
func New(cfg escached.Config, version, uname, fencePeer string, layers Layers, log *slog.Logger) *Engine {
	return &Engine{
		Layers: layers, cfg: cfg, version: version, uname: uname, fencePeer: fencePeer, log: log, now: time.Now,
		reg: newRegistry(), locks: operation.NewLocks(time.Now), holds: newHolds(filepath.Join(cfg.RunDir, "holds")),
		flushes: newFlushes(), dirt: newStandbyDirt(), metrics: newMeasures(), space: newSpace(layers.Store, time.Now),
		unasked: newUnasked(), turns: semaphore.NewWeighted(int64(max(2, runtime.NumCPU()))),
	}
}

// retag writes a changed record to the disk, then to memory.
func (e *Engine) retag(ctx context.Context, from, to volume) error {
	if from == to {
		return nil
	}
	if err := e.Store.Retag(ctx, from.name(), from.tags(), to.tags()); err != nil {
		return err
	}
	e.reg.put(to)
	return nil
}

func sameIP(a, b string) bool {
	x, y := net.ParseIP(a), net.ParseIP(b)
	return x != nil && x.Equal(y)
}

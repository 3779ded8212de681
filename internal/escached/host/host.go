// Package host has the volumes of this host, the layers below them, and the steps that several
// verbs share. lock.go locks a volume for a verb, device.go is about its assembled device, and
// replica.go about its DRBD replica. The verbs themselves are in package engine.
package host

import (
	"context"
	"crypto/rand"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/holds"
	"github.com/escache/escache-csi/internal/escached/linksecret"
	"github.com/escache/escache-csi/internal/escached/memory"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/operation"
)

// Host has the volumes of this host and the layers below them.
type Host struct {
	Layers

	Config  escached.Config
	Volumes *volume.Registry
	Holds   *holds.Records
	Now     func() time.Time
	// Uptime is the time since the host booted, including the time it slept. It never jumps.
	Uptime func() time.Duration
	// Turns bounds how many replicas are created or removed at the same time: that starts many
	// programs, and no I/O waits for it.
	Turns *semaphore.Weighted

	locks *operation.Locks
	// links is held while a device's link is made or removed: volumes of one pool share a directory.
	links sync.Mutex
	// MemoryClaims are the caches that are being connected.
	MemoryClaims *memory.Claims
	// FailedDisks has a mark for each replica whose disk has failed.
	FailedDisks faileddisk.Marks
	// unchecked has the copies that DRBD does not use before they are known to be in order.
	unchecked sync.Map
	// Secrets are the shared secrets of the replication links.
	Secrets linksecret.Files
	// stranger is a secret that no other host has. It stands in for one that is lost.
	stranger escache.Secret
	// Permits has the volumes whose I/O DRBD does not freeze when the peer is lost.
	Permits permit.Records

	// uname is this host's name as drbdadm sees it.
	uname    string
	handlers Handlers
}

// Handlers are command lines that the kernel runs.
type Handlers struct {
	// FencePeer is run before a replica goes on without its peer.
	FencePeer string
	// DiskFailed is run when the disk of a replica has failed. It is told which one.
	DiskFailed string
}

// New returns a host that knows no volumes yet. uname is this host's name in DRBD's resource files.
func New(cfg escached.Config, uname string, handlers Handlers, layers Layers) *Host {
	return &Host{
		Layers: layers, Config: cfg, uname: uname, handlers: handlers, Now: time.Now, Uptime: uptime,
		Volumes: volume.NewRegistry(), Holds: holds.New(filepath.Join(cfg.RunDir, "holds")),
		FailedDisks: faileddisk.In(cfg.StateDir), Secrets: linksecret.In(cfg.StateDir), stranger: escache.Secret(rand.Text()),
		Permits: permit.In(cfg.RunDir), MemoryClaims: memory.NewClaims(layers.Memory),
		locks: operation.NewLocks(time.Now), Turns: semaphore.NewWeighted(int64(max(2, runtime.NumCPU()))),
	}
}

// Retag stores a changed volume: first in the tags on the disk, then in memory. A change that fails may be made all the
// same, perhaps later. Then memory counts, and the next Retag makes the disk say the same, also if nothing changes.
func (h *Host) Retag(ctx context.Context, from, to volume.Volume) error {
	name := from.Name()
	unsure := h.Volumes.IsUnsure(name)
	var err error
	switch {
	case unsure:
		err = h.Store.Rewrite(ctx, name, to.Tags())
	case from == to:
		return nil
	default:
		err = h.Store.Retag(ctx, name, from.Tags(), to.Tags())
	}
	h.Volumes.SetUnsure(name, err != nil)
	if err != nil {
		return err
	}
	h.Volumes.Put(to)
	return nil
}

func uptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // every Linux has this clock
	}
	return time.Duration(t.Nano())
}

package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// unasked is the set of replicas that came up while the arbiter could not say whether they are
// outdated. The arbiter is asked again about them. Until it answers, only its answer at the
// promotion keeps an outdated copy from being used.
type unasked struct {
	mu    sync.Mutex
	names map[string]bool
	// silent is set when the arbiter has not answered during a recovery. The other volumes then do
	// not wait for it.
	silent bool
}

func newUnasked() *unasked { return &unasked{names: map[string]bool{}} }

func (u *unasked) set(name string, pending bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if pending {
		u.names[name] = true
	} else {
		delete(u.names, name)
	}
}

func (u *unasked) has(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.names[name]
}

func (u *unasked) isSilent() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.silent
}

func (u *unasked) setSilent(silent bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.silent = silent
}

const (
	// askAtStart bounds the question about one replica during the recovery. At boot the arbiter
	// usually starts later than escached.
	askAtStart = 2 * time.Second
	// askPendingEvery is how often the arbiter is asked again about unasked replicas.
	askPendingEvery = 5 * time.Second
	// recordFresh is how old a record may be at most when a replica is marked because of it.
	recordFresh = 10 * time.Second
)

// mayBeOutdated reports whether this replica may be outdated without DRBD knowing it. While it is
// linked, DRBD knows.
func mayBeOutdated(st drbd.Status, up bool) bool {
	return !up || st.Role == drbd.Secondary && !st.Linked() && (st.Disk == drbd.UpToDate || st.Disk == drbd.Consistent)
}

// markFromRecord marks the replica outdated if the record lists it, and only then: if two hosts
// marked themselves on their own judgement, neither could be promoted without force. The caller has
// locked the volume. If it runs before `up`, the mark is on the disk before DRBD reads the disk.
func (e *Engine) markFromRecord(ctx context.Context, v volume.Volume, patience time.Duration) error {
	st, up, err := e.Replica(v.Minor)
	if err != nil {
		return err
	}
	if v.Phase != volume.Ready || !mayBeOutdated(st, up) {
		e.unasked.set(v.Name(), false)
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asked := e.Now()
	record, err := e.Records.Record(asking, v.VolumeRef)
	if err != nil && problem.Of(err).Code == escache.CodeNotFound {
		err = nil // there is no record, so nothing is outdated
	}
	e.unasked.set(v.Name(), err != nil)
	if err != nil {
		e.unasked.setSilent(true)
		return nil
	}
	sameImage := record.ImageID == "" || v.ImageID == "" || record.ImageID == v.ImageID
	if !sameImage || !slices.Contains(record.Outdated, e.Config.Node) {
		return nil
	}
	if !up {
		// drbdadm needs the resource file.
		if _, err := e.Resources.Write(e.Resource(v)); err != nil {
			return err
		}
	}
	if e.Now().Sub(asked) > recordFresh {
		e.unasked.set(v.Name(), true)
		return nil
	}
	crashpoint.Reach("start/named_outdated")
	if err := e.Replicator.Outdate(ctx, v.Name()); err != nil {
		e.unasked.set(v.Name(), true)
		return err
	}
	e.log.Warn("marked the replica outdated, as the record says", "pool", v.Pool, "image", v.Image)
	return nil
}

// watchUnasked asks the arbiter again about unasked replicas until ctx ends.
func (e *Engine) watchUnasked(ctx context.Context) {
	for pause.For(ctx, askPendingEvery) == nil {
		for _, v := range e.Volumes.List() {
			if !e.unasked.has(v.Name()) {
				continue
			}
			e.askPending(ctx, v.VolumeRef)
		}
	}
}

func (e *Engine) askPending(ctx context.Context, ref escache.VolumeRef) {
	ctx, done, err := e.Begin(ctx, ref, verbAskRecord, host.ChangeTimeout)
	if err != nil {
		return // a verb is running; the next round asks
	}
	defer done()
	v, err := e.Known(ref)
	if err != nil {
		e.unasked.set(volume.NameOf(ref), false)
		return
	}
	if err := e.markFromRecord(ctx, v, e.Config.ArbiterTimeout); err != nil {
		e.log.Warn("the replica is outdated according to the record, but could not be marked",
			"pool", v.Pool, "image", v.Image, "error", err)
	}
}

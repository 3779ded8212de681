package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

// unasked are the replicas that came up while the arbiter could not say whether they are outdated. They are asked about again: until then
// only the question at their promotion stands between a stale copy and its use.
type unasked struct {
	mu    sync.Mutex
	names map[string]bool
	// silent is set when the arbiter did not answer during a recovery, so that the other volumes need not wait for it too.
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
	// askAtStart bounds the question about one replica during the recovery: at boot the arbiter usually starts later than escached.
	askAtStart = 2 * time.Second
	// askPendingEvery is how often what is pending is asked about.
	askPendingEvery = 5 * time.Second
	// recordFresh is how old a record may be when a replica is marked by it.
	recordFresh = 10 * time.Second
)

// mayBeStale reports whether only the record can say that this replica is not current: linked, DRBD itself knows.
func mayBeStale(st drbd.Status, up bool) bool {
	return !up || st.Role == drbd.Secondary && !st.Linked() && (st.Disk == drbd.UpToDate || st.Disk == drbd.Consistent)
}

// markFromRecord marks the replica outdated if the record names it, and does nothing else: two hosts that marked themselves by their own
// opinion would need force. The caller has the volume. Before `up` the mark is on the disk when DRBD first looks at it.
func (e *Engine) markFromRecord(ctx context.Context, v volume, patience time.Duration) error {
	st, up, err := e.replica(v.Minor)
	if err != nil {
		return err
	}
	if v.Phase != phaseReady || !mayBeStale(st, up) {
		e.unasked.set(v.name(), false)
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asked := e.now()
	record, err := e.Records.Record(asking, v.VolumeRef)
	if err != nil && ProblemOf(err).Code == escache.CodeNotFound {
		err = nil // nothing is on record, so nothing is outdated
	}
	e.unasked.set(v.name(), err != nil)
	if err != nil {
		e.unasked.setSilent(true)
		return nil
	}
	sameImage := record.ImageID == "" || v.ImageID == "" || record.ImageID == v.ImageID
	if !sameImage || !slices.Contains(record.Outdated, e.cfg.Node) {
		return nil
	}
	if !up {
		// drbdadm needs the file.
		if _, err := e.Resources.Write(e.resource(v)); err != nil {
			return err
		}
	}
	if e.now().Sub(asked) > recordFresh {
		e.unasked.set(v.name(), true)
		return nil
	}
	crashpoint.Reach("start/named_outdated")
	if err := e.Replicator.Outdate(ctx, v.name()); err != nil {
		e.unasked.set(v.name(), true)
		return err
	}
	e.log.Warn("the record has this replica as outdated: marked", "pool", v.Pool, "image", v.Image)
	return nil
}

// watchUnasked asks again about what is pending, until ctx ends.
func (e *Engine) watchUnasked(ctx context.Context) {
	for pause.For(ctx, askPendingEvery) == nil {
		for _, v := range e.reg.list() {
			if !e.unasked.has(v.name()) {
				continue
			}
			e.askPending(ctx, v.VolumeRef)
		}
	}
}

func (e *Engine) askPending(ctx context.Context, ref escache.VolumeRef) {
	ctx, done, err := e.begin(ctx, ref, verbAskRecord, changeTimeout)
	if err != nil {
		return // a verb is at it; the next round asks
	}
	defer done()
	v, err := e.known(ref)
	if err != nil {
		e.unasked.set(nameOf(ref), false)
		return
	}
	if err := e.markFromRecord(ctx, v, e.cfg.ArbiterTimeout); err != nil {
		e.log.Warn("a replica that the record has as outdated could not be marked", "pool", v.Pool, "image", v.Image, "error", err)
	}
}

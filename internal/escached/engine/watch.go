package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

// Watch does what nobody asks for, until ctx ends: it connects again what DRBD has given up, asks the arbiter again, gives back what a verb
// left behind, and releases holds whose time is up. It is called after Recover.
func (e *Engine) Watch(ctx context.Context) {
	go e.watchFrozen(ctx)
	go e.watchLeftovers(ctx)
	go e.watchStandbys(ctx)
	go e.watchUnasked(ctx)
	go e.watchAlone(ctx)
	go e.space.watch(ctx)
	e.watchHolds(ctx)
}

// askAgainEvery is how often a frozen Primary's question is put to the arbiter again.
const askAgainEvery = 10 * time.Second

// frozenLook is how often frozen I/O is looked for: rarely enough to cost nothing on an idle host.
const frozenLook = 3 * time.Second

// watchFrozen repeats the question of Primaries that lost their peer and were not answered, until ctx ends: the arbiter may
// have been away. DRBD asks once by itself; disconnecting makes it ask again.
func (e *Engine) watchFrozen(ctx context.Context) {
	since := map[string]time.Time{}
	for pause.For(ctx, frozenLook) == nil {
		if len(e.reg.list()) == 0 {
			continue
		}
		e.finishAbandoned(ctx)
		table, err := e.States.Read()
		if err != nil {
			continue
		}
		for _, v := range e.reg.list() {
			st := table.Devices[v.Minor]
			if !st.Suspended || st.Linked() || v.Phase == phaseAbandoning {
				delete(since, v.name())
				continue
			}
			if since[v.name()].IsZero() {
				since[v.name()] = e.now()
			}
			if e.now().Sub(since[v.name()]) < askAgainEvery {
				continue
			}
			since[v.name()] = e.now()
			if err := e.askAgain(ctx, v); err != nil {
				e.log.Warn("frozen I/O: the arbiter could not be asked again", "pool", v.Pool, "image", v.Image, "error", err)
			}
		}
	}
}

// Names of what escached does to a volume by itself.
const (
	verbAskArbiter   = "ask_arbiter"
	verbAskRecord    = "ask_record"
	verbConnectAgain = "connect_again"
)

func (e *Engine) askAgain(ctx context.Context, v volume) error {
	ctx, done, err := e.begin(ctx, v.VolumeRef, verbAskArbiter, changeTimeout)
	if err != nil {
		return nil // a verb is at it; the next round asks
	}
	defer done()
	if err := e.Replicator.Disconnect(ctx, v.name()); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return e.Replicator.Connect(ctx, v.name())
}

const (
	// aloneLook is how often links are looked for that DRBD has given up, and aloneLongest the longest time between two tries with one.
	aloneLook    = 5 * time.Second
	aloneLongest = 2 * time.Minute
)

// watchAlone connects replicas again that DRBD has left without a link, until ctx ends. A former partner that came to the wrong port makes
// it give up, and so does a handshake that failed for a reason that has passed. Frozen I/O is not its business, nor is a copy that was left
// behind: there the answer of the arbiter counts.
func (e *Engine) watchAlone(ctx context.Context) {
	type try struct {
		next time.Time
		wait time.Duration
	}
	tries := map[string]try{}
	for pause.For(ctx, aloneLook) == nil {
		if len(e.reg.list()) == 0 {
			continue
		}
		table, err := e.States.Read()
		if err != nil {
			continue
		}
		for _, v := range e.reg.list() {
			st, now := table.Devices[v.Minor], e.now()
			last, again := tries[v.name()]
			switch {
			case st.Connection != drbd.StandAlone:
				if now.After(last.next) {
					delete(tries, v.name())
				}
			case !again:
				tries[v.name()] = try{next: now.Add(aloneLook / 2), wait: aloneLook}
			case now.After(last.next):
				tries[v.name()] = try{next: now.Add(last.wait), wait: min(2*last.wait, aloneLongest)}
				e.connectAgain(ctx, v)
			}
		}
	}
}

func (e *Engine) connectAgain(ctx context.Context, v volume) {
	ctx, done, err := e.begin(ctx, v.VolumeRef, verbConnectAgain, changeTimeout)
	if err != nil {
		return // a verb is at it
	}
	defer done()
	v, err = e.known(v.VolumeRef)
	if err != nil {
		return
	}
	st, up, err := e.replica(v.Minor)
	if err != nil || !up || st.Connection != drbd.StandAlone || st.Suspended {
		return
	}
	if err := e.ensureUp(ctx, v); err != nil {
		e.log.Warn("a replica could not be connected again", "pool", v.Pool, "image", v.Image, "error", err)
	}
}

// leftoverEvery is how often leftovers are looked for. What is found twice, without a verb that is at it, is one.
const leftoverEvery = time.Minute

// watchLeftovers gives back what a verb could not because the kernel did not let go in time, until ctx ends: an image that
// stays mapped here cannot be mapped on the peer.
func (e *Engine) watchLeftovers(ctx context.Context) {
	before := map[string]bool{}
	for pause.For(ctx, leftoverEvery) == nil {
		now := map[string]bool{}
		for _, v := range e.leftovers(ctx) {
			now[v.name()] = true
			if before[v.name()] {
				e.dropLeftover(ctx, v)
			}
		}
		before = now
	}
}

// leftovers are the volumes with a map or the Primary role, but without a device and without a verb.
func (e *Engine) leftovers(ctx context.Context) []volume {
	table, err := e.States.Read()
	if err != nil {
		return nil
	}
	all, err := e.Images.Find("", "")
	if err != nil {
		return nil
	}
	mapped := map[string]bool{}
	for _, m := range all {
		mapped[nameOf(escache.VolumeRef{Pool: m.Pool, Image: m.Image})] = true
	}
	var held []volume
	for _, v := range e.reg.list() {
		if (mapped[v.name()] || table.Devices[v.Minor].Role == drbd.Primary) && e.locks.Running(v.name()) == "" {
			held = append(held, v)
		}
	}
	if len(held) == 0 {
		return nil
	}
	devices, err := e.Caches.Devices(ctx, namePrefix)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(held, func(v volume) bool {
		_, connected := devices[v.name()]
		return connected
	})
}

func (e *Engine) dropLeftover(ctx context.Context, v volume) {
	ctx, done, err := e.begin(ctx, v.VolumeRef, "clean_up", changeTimeout)
	if err != nil {
		return // a verb is at it by now
	}
	defer done()
	if _, connected, err := e.device(ctx, v.name()); err != nil || connected {
		return
	}
	if err := e.unmapAndDemote(ctx, v); err != nil {
		e.log.Warn("what is left of a connect cannot be given back yet", "pool", v.Pool, "image", v.Image, "error", err)
		return
	}
	e.log.Warn("gave back what was left of a connect", "pool", v.Pool, "image", v.Image)
}

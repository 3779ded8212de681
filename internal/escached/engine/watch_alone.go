package engine

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

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

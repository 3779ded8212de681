package watch

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// alonePoll is how often Alone looks for replicas without a link.
	alonePoll = 5 * time.Second
	// aloneLongest is the longest time between two attempts to reconnect one replica.
	aloneLongest = 2 * time.Minute
	// atOnce is how many replicas Alone works on at the same time. The engine log counts on no more than four that read.
	atOnce = 4
)

// Alone reconnects replicas whose link DRBD has given up (StandAlone). That happens when a former
// partner calls the wrong port, or a handshake fails for a transient reason. It also brings up those
// that could not come up at the start. It leaves frozen I/O and outdated copies alone: those wait for
// the arbiter. Booted links copies that were booted, and one that DRBD still attaches may be such a copy. It returns when ctx ends.
func (w *Watcher) Alone(ctx context.Context) {
	type try struct {
		next time.Time
		wait time.Duration
	}
	tries := map[string]try{}
	var running errgroup.Group // a copy that is read first may take long, and others must not wait for it
	running.SetLimit(atOnce)
	for pause.For(ctx, alonePoll) == nil {
		w.eachReplica(func(v volume.Volume, st drbd.Status, up bool) {
			now := w.Now()
			last, again := tries[v.Name()]
			switch {
			case up && (st.Connection != drbd.StandAlone || host.Booted(st) || host.Attaching(st)), v.Phase != volume.Ready:
				if now.After(last.next) {
					delete(tries, v.Name())
				}
			case !again:
				tries[v.Name()] = try{next: now.Add(alonePoll / 2), wait: alonePoll}
			case now.After(last.next) && w.Running(v.Name()) == "":
				if running.TryGo(func() error { w.Reconnect(ctx, v); return nil }) {
					tries[v.Name()] = try{next: now.Add(last.wait), wait: min(2*last.wait, aloneLongest)}
				}
			}
		})
	}
}

// Reconnect connects one replica again, if its link is given up and its I/O is not frozen, or if DRBD
// does not run it: it could not come up at the start. Without the secret of the link the peer would
// only refuse it.
func (w *Watcher) Reconnect(ctx context.Context, v volume.Volume) {
	ctx, done, err := w.TryBegin(ctx, v.VolumeRef, host.WorkReconnect, host.ChangeTimeout+w.ReadTime(v.Name()))
	if err != nil {
		return // a verb is running
	}
	defer done()
	v, err = w.Known(v.VolumeRef)
	if err != nil {
		return
	}
	st, up, err := w.Replica(v.Minor)
	if err != nil || up && (st.Connection != drbd.StandAlone || st.Suspended || host.Attaching(st)) {
		return
	}
	if lost, err := w.LostSecret(v); lost || err != nil {
		return
	}
	if err := w.EnsureUp(ctx, v); err != nil {
		w.log.Warn("a replica could not be connected again", "pool", v.Pool, "image", v.Image, "error", err)
	}
}

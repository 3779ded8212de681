package watch

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// exchangePoll is how often Exchanges looks at the replicas: one read of /proc/drbd.
	exchangePoll = 5 * time.Second
	// exchangeLimit is how long the two ends of a link may tell each other which blocks differ. For a
	// cache of 1 TiB that is 32 MiB.
	exchangeLimit = time.Minute
)

// Exchanges reconnects a link that is stuck in the exchange of bitmaps. DRBD 8.4 stays there for good
// if it makes a new generation while the two ends compare theirs. That happens when the peer comes back
// at the moment in which the Primary goes on without it: then each end waits for the other. It returns when
// ctx ends.
func (w *Watcher) Exchanges(ctx context.Context) {
	since := map[string]time.Time{}
	for pause.For(ctx, exchangePoll) == nil {
		w.eachReplica(func(v volume.Volume, st drbd.Status, _ bool) {
			first, seen := since[v.Name()]
			switch {
			case !offersBitmap(st):
				delete(since, v.Name())
			case !seen:
				since[v.Name()] = w.Now()
			case w.Now().Sub(first) >= exchangeLimit:
				delete(since, v.Name())
				if err := w.connectAnew(ctx, v.VolumeRef); err != nil {
					w.log.Warn("the link stands in the exchange of bitmaps, and could not be connected again",
						"pool", v.Pool, "image", v.Image, "peer", v.Peer.Name, "error", err)
				}
			}
		})
	}
}

// offersBitmap reports whether this end of a link is the one that mends an exchange: the one with the
// current copy.
func offersBitmap(st drbd.Status) bool {
	return st.Connection == escache.LinkWFBitMapS && st.Disk == drbd.UpToDate && !st.Suspended &&
		(st.Role == drbd.Primary || st.PeerRole != drbd.Primary)
}

// connectAnew drops the link and connects again. A Primary must not be frozen for that (see the
// package permit), so it takes a permit first: the copy of a peer that is to be filled does not count.
func (w *Watcher) connectAnew(ctx context.Context, ref escache.VolumeRef) error {
	ctx, done, err := w.TryBegin(ctx, ref, host.WorkReconnect, host.ChangeTimeout)
	if err != nil {
		return nil // a verb is running; the next round looks again
	}
	defer done()
	v, ok := w.Volumes.Get(volume.NameOf(ref))
	if !ok || v.Phase != volume.Ready {
		return nil
	}
	st, up, err := w.Replica(v.Minor)
	if err != nil || !up || !offersBitmap(st) {
		return err
	}
	if st.Role == drbd.Primary {
		if err := w.TakePermit(ctx, v); err != nil {
			return err
		}
	}
	w.log.Warn("the link stands in the exchange of bitmaps and is connected again", "pool", v.Pool, "image", v.Image, "peer", v.Peer.Name)
	if err := w.Replicator.Disconnect(ctx, v.Name()); err != nil {
		return err
	}
	return w.Replicator.Connect(ctx, v.Name()) // if it fails, Alone tries again
}

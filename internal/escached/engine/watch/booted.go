package watch

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// bootedPoll is how often Booted looks for booted copies: one read of /proc/drbd.
	bootedPoll = time.Second
	// joinAgain is the pause after a booted copy could not be linked. The peer or the arbiter is then mostly away.
	joinAgain = 5 * time.Second
)

// Booted links booted copies with their peers as soon as the record allows it. It returns when ctx ends.
func (w *Watcher) Booted(ctx context.Context) {
	next := map[string]time.Time{}
	said := map[string]string{}
	for pause.For(ctx, bootedPoll) == nil {
		w.eachReplica(func(v volume.Volume, st drbd.Status, up bool) {
			name := v.Name()
			if !up || !host.Booted(st) || v.Phase != volume.Ready {
				delete(next, name)
				delete(said, name)
				return
			}
			if w.Now().Before(next[name]) {
				return
			}
			err := w.join(ctx, v)
			if err == nil {
				return
			}
			next[name] = w.Now().Add(joinAgain)
			if said[name] != err.Error() {
				said[name] = err.Error()
				w.log.Warn("a copy that was booted is not linked with its peer yet",
					"pool", v.Pool, "image", v.Image, "peer", v.Peer.Name, "error", err)
			}
		})
	}
}

func (w *Watcher) join(ctx context.Context, v volume.Volume) error {
	ctx, done, err := w.TryBegin(ctx, v.VolumeRef, host.WorkReconnect, host.ChangeTimeout)
	if err != nil {
		return nil // a verb is running; the next round looks again
	}
	defer done()
	v, known := w.Volumes.Get(v.Name())
	if !known || v.Phase != volume.Ready {
		return nil
	}
	if lost, err := w.LostSecret(v); lost || err != nil {
		return err
	}
	return w.Join(ctx, v)
}

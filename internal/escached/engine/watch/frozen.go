package watch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// askAgainEvery is how often the arbiter is asked again about a frozen Primary.
const askAgainEvery = 10 * time.Second

// frozenPoll is how often Frozen looks for frozen I/O. The load on an idle host is negligible.
const frozenPoll = 3 * time.Second

// Frozen asks the arbiter again about Primaries that have lost their peer and whose I/O is frozen,
// because the arbiter may have been unreachable before. DRBD asks only once by itself; a disconnect
// makes it ask again. Before each round Frozen calls finishAbandoned, which gives up devices that
// another node has taken over. It returns when ctx ends.
func (w *Watcher) Frozen(ctx context.Context, finishAbandoned func(context.Context)) {
	since := map[string]time.Time{}
	for pause.For(ctx, frozenPoll) == nil {
		if len(w.Volumes.List()) == 0 {
			continue
		}
		finishAbandoned(ctx)
		w.AskAll(ctx, since)
	}
}

// AskAll asks again about every volume that has been frozen for long enough. since has when it was found frozen, or asked about.
func (w *Watcher) AskAll(ctx context.Context, since map[string]time.Time) {
	w.eachReplica(func(v volume.Volume, st drbd.Status, _ bool) {
		if !frozen(v, st) {
			delete(since, v.Name())
			return
		}
		if since[v.Name()].IsZero() {
			since[v.Name()] = w.Now()
		}
		if w.Now().Sub(since[v.Name()]) < askAgainEvery {
			return
		}
		since[v.Name()] = w.Now()
		if err := w.askAgain(ctx, v); err != nil {
			w.log.Warn("frozen I/O: the arbiter could not be asked again", "pool", v.Pool, "image", v.Image, "error", err)
		}
	})
}

func frozen(v volume.Volume, st drbd.Status) bool {
	return st.Suspended && !st.Linked() && v.Phase != volume.Abandoning
}

// askAgain does not wait for a verb that may hang in the frozen I/O: that ends only if the answer is yes.
func (w *Watcher) askAgain(ctx context.Context, v volume.Volume) error {
	asking, done, err := w.TryBegin(ctx, v.VolumeRef, host.WorkAskArbiter, host.ChangeTimeout)
	locked := err == nil
	switch {
	case locked:
		defer done()
	case host.EndsWithIO(w.Running(v.Name())):
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(context.WithoutCancel(ctx), host.ChangeTimeout)
		defer cancel()
	default:
		return nil // a verb is running; the next round asks
	}
	now, known := w.Volumes.Get(v.Name())
	st, up, err := w.Replica(v.Minor)
	if err != nil || !known || !up || !frozen(now, st) {
		return err
	}
	if locked { // else a verb may be changing the tags
		if err := w.followGivenBack(asking, now, st); err != nil {
			return fmt.Errorf("the volume was taken from this host by force and given back: %w", err)
		}
	}
	if err := w.Replicator.Disconnect(asking, v.Name()); err != nil {
		return fmt.Errorf("disconnect: %w", err)
	}
	return w.Replicator.Connect(asking, v.Name())
}

// followGivenBack stores the epoch of the record if this host lost the volume by force, has it again, and still has the frozen
// device of before. In the epoch of that device the arbiter always refuses. dev_connect would store the newer one, but leaves a frozen
// device alone. The peer may wait as well: if it was booted, it makes no link before that device is gone.
//
// It does so only once the arbiter allows this host to go on alone in that epoch. So the copy here is current on record, and
// the record was compared with the image's metadata. If the arbiter does not, asking in the older epoch is of no use. The record must
// name this machine: another one of the same name does not have what was written here.
func (w *Watcher) followGivenBack(ctx context.Context, v volume.Volume, st drbd.Status) error {
	ctx, cancel := context.WithTimeout(ctx, 2*w.Config.ArbiterTimeout)
	defer cancel()
	record, err := w.Records.Record(ctx, v.VolumeRef)
	if err != nil || st.Role != drbd.Primary || st.Disk != drbd.UpToDate || !w.isGivenBack(v, record) {
		return nil // the handler asks all the same, and says why it was refused
	}
	next := v
	next.Epoch = record.Epoch
	if err := w.OutdatePeer(ctx, next); err != nil {
		return err
	}
	w.log.Warn("frozen I/O: this host lost the volume and has it again, and asks in the newer attachment from now on",
		"pool", v.Pool, "image", v.Image, "epoch", record.Epoch, "deviceOf", v.Epoch)
	return w.Retag(ctx, v, next)
}

// isGivenBack reports whether this machine was fenced and has the volume in a later attachment than that of its device.
func (w *Watcher) isGivenBack(v volume.Volume, record escache.VolumeRecord) bool {
	return record.AttachedNode == w.Config.Node && record.Epoch > v.Epoch && slices.Contains(record.Fenced, w.Config.Node) &&
		record.AttachedHostID != "" && record.AttachedHostID == w.hostID()
}

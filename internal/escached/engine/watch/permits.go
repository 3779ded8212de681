package watch

import (
	"context"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// permitPoll is how often Permits looks at the replicas: one read of /proc/drbd. It is short
	// because until a permit is taken, the loss of the peer may hang the device.
	permitPoll = 500 * time.Millisecond
	// permitAgain is the pause after a permit could not be taken or dropped. The arbiter is then
	// mostly away.
	permitAgain = 5 * time.Second
)

// Permits takes a permit for each Primary whose peer has no disk, and drops it when the peer's copy is
// current again. It returns when ctx ends.
func (w *Watcher) Permits(ctx context.Context) {
	told := map[string]bool{} // by this process: an earlier one may have been killed before it told DRBD
	next := map[string]time.Time{}
	for pause.For(ctx, permitPoll) == nil {
		w.eachReplica(func(v volume.Volume, st drbd.Status, _ bool) {
			name := v.Name()
			if PermitDue(st, w.Host.Permits.Get(name), told[name]) == Nothing || w.Now().Before(next[name]) {
				return
			}
			if err := w.SettlePermit(ctx, v.VolumeRef, told[name]); err != nil {
				next[name] = w.Now().Add(permitAgain)
				w.log.Warn("it is not settled whether I/O goes on when the peer, which has no disk, is lost",
					"pool", v.Pool, "image", v.Image, "peer", v.Peer.Name, "error", err)
				return
			}
			delete(next, name)
			told[name] = w.Host.Permits.Get(name) == permit.Granted
		})
	}
}

// Due is what has to be done about a volume's permit.
type Due int

// What may be due.
const (
	Nothing Due = iota
	Take
	Drop
)

// PermitDue returns what is due. A permit is taken over a link that is up, if the peer is seen to have
// no disk. It stays until the peer's copy is current again. Before that there are moments at which no
// write waits for the peer, so a freeze may hang the device. DRBD would freeze if the link broke while
// it compares the copies. It is dropped then, or if this host has no current disk itself or is not
// Primary any more. told is false if DRBD has perhaps not been told of a permit that was granted.
func PermitDue(st drbd.Status, state permit.State, told bool) Due {
	holds := st.Role == drbd.Primary && st.Disk == drbd.UpToDate
	current := st.Connection == drbd.Connected && st.PeerDisk == drbd.UpToDate
	switch {
	case holds && st.Connection == drbd.Connected && st.PeerDisk.Lost() && !st.Suspended && (state != permit.Granted || !told):
		return Take
	case state != permit.None && (!holds || current):
		return Drop
	}
	return Nothing
}

// SettlePermit does what is due about the permit of a volume.
func (w *Watcher) SettlePermit(ctx context.Context, ref escache.VolumeRef, told bool) error {
	ctx, done, err := w.TryBegin(ctx, ref, host.WorkSettlePermit, host.ChangeTimeout)
	if err != nil {
		return nil // a verb is running; the next round looks again
	}
	defer done()
	v, ok := w.Volumes.Get(volume.NameOf(ref))
	if !ok || v.Phase == volume.Creating || v.Phase == volume.Deleting {
		return nil
	}
	st, up, err := w.Replica(v.Minor)
	if err != nil || !up {
		return err
	}
	switch PermitDue(st, w.Host.Permits.Get(v.Name()), told) {
	case Take:
		if err := w.TakePermit(ctx, v); err != nil {
			return err
		}
		w.log.Warn("the peer has no disk and is on record as outdated: I/O goes on when it is lost",
			"pool", v.Pool, "image", v.Image, "peer", v.Peer.Name)
	case Drop:
		if err := w.DropPermit(ctx, v); err != nil {
			return err
		}
		w.log.Info("I/O is frozen again when the peer is lost", "pool", v.Pool, "image", v.Image, "peer", v.Peer.Name)
	case Nothing:
	}
	return nil
}

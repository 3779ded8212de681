package engine

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// repeer gives a replica another partner, if its own data is current. The new partner's metadata is
// fresh, so DRBD fills it from here. I/O goes on meanwhile. The old partner never gets the new link's
// secret.
func (e *Engine) repeer(ctx context.Context, have, next, want volume.Volume, secret escache.Secret) error {
	if err := e.EnsureUp(ctx, have); err != nil {
		return err
	}
	st, _, err := e.Replica(have.Minor)
	if err != nil {
		return err
	}
	if err := e.mayRepeer(ctx, have, want, st); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/repeer")
	// Disconnect while the old partner is still the one on record here: a Primary now asks the
	// arbiter about it, not about the new one.
	if err := e.Replicator.Disconnect(ctx, have.Name()); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/old_peer_left")
	if err := e.NotFrozen(ctx, have); err != nil {
		// The old partner was lost at this moment, and the arbiter did not allow going on without
		// it. So it may still be the one that goes on.
		return errors.Join(err, e.Replicator.Connect(ctx, have.Name()))
	}
	if err := e.leaveForGood(ctx, have); err != nil {
		return errors.Join(err, e.Replicator.Connect(ctx, have.Name()))
	}
	next.Self, next.Peer, next.Keyed = want.Self, want.Peer, want.Keyed
	if err := e.Retag(ctx, have, next); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/repeered")
	if err := e.setSecret(ctx, next, secret); err != nil {
		return err
	}
	if _, err := e.WriteResource(next); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/repeer_written")
	err = e.Replicator.Adjust(ctx, next.Name())
	crashpoint.Reach("put_replica/repeer_connecting")
	return err
}

// leaveForGood gives up the permit to go on without the old partner: it does not hold for the new one.
// With a permit nothing was frozen when the partner was left, so that proves nothing, and the arbiter
// is asked once more.
func (e *Engine) leaveForGood(ctx context.Context, have volume.Volume) error {
	if e.Permits.Get(have.Name()) == permit.None {
		return nil
	}
	if err := e.OutdatePeer(ctx, have); err != nil {
		return err
	}
	return e.DropPermit(ctx, have)
}

// mayRepeer fails if this replica may not have every acknowledged write: the new partner would be
// filled with old data.
func (e *Engine) mayRepeer(ctx context.Context, have, want volume.Volume, st drbd.Status) error {
	mismatch := func() error {
		return have.Fail(escache.CodeReplicaMismatch,
			"the replica here has partner %s and is %s; only a current one can be given the partner %s",
			have.Peer.Name, st.Disk, want.Peer.Name)
	}
	switch {
	case st.Linked() && st.PeerRole == drbd.Primary:
		return have.Fail(escache.CodeReplicaMismatch,
			"its partner %s has the device; give that one the partner %s, or delete the replica here",
			have.Peer.Name, want.Peer.Name)
	case st.Disk == drbd.UpToDate:
		// While I/O is frozen it is not known which of the two copies goes on, and the arbiter is
		// being asked about the old partner.
		return e.NotFrozen(ctx, have)
	case st.Disk != drbd.Inconsistent || st.Linked():
		return mismatch()
	}
	unused, err := e.Unused(ctx, have)
	if err == nil && !unused {
		err = mismatch()
	}
	return err
}

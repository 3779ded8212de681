package engine

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// repeer gives a replica another partner, if this one's data is good to copy from: to DRBD the new partner's metadata is fresh, so it is
// filled from here. I/O goes on meanwhile.
func (e *Engine) repeer(ctx context.Context, have, next, want volume) error {
	if err := e.ensureUp(ctx, have); err != nil {
		return err
	}
	st, _, err := e.replica(have.Minor)
	if err != nil {
		return err
	}
	if err := e.mayRepeer(ctx, have, want, st); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/repeer")
	// The old partner is left under its own name: a Primary asks the arbiter about it now, not about the new one.
	if err := e.Replicator.Disconnect(ctx, have.name()); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/old_peer_left")
	if err := e.notFrozen(ctx, have); err != nil {
		// It was lost at this very moment, and going on without it was not granted: then it may still be the one that goes on.
		return errors.Join(err, e.Replicator.Connect(ctx, have.name()))
	}
	next.Self, next.Peer = want.Self, want.Peer
	if err := e.retag(ctx, have, next); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/repeered")
	if _, err := e.Resources.Write(e.resource(next)); err != nil {
		return err
	}
	crashpoint.Reach("put_replica/repeer_written")
	err = e.Replicator.Adjust(ctx, next.name())
	crashpoint.Reach("put_replica/repeer_connecting")
	return err
}

// mayRepeer refuses what would give a new partner something else than all that was acknowledged.
func (e *Engine) mayRepeer(ctx context.Context, have, want volume, st drbd.Status) error {
	mismatch := func() error {
		return have.fail(escache.CodeReplicaMismatch,
			"the replica here has partner %s and is %s; only a current one can be given the partner %s",
			have.Peer.Name, st.Disk, want.Peer.Name)
	}
	switch {
	case st.Linked() && st.PeerRole == drbd.Primary:
		return have.fail(escache.CodeReplicaMismatch,
			"its partner %s has the device; give that one the partner %s, or delete the replica here",
			have.Peer.Name, want.Peer.Name)
	case st.Disk == drbd.UpToDate:
		// While I/O is frozen nobody knows which of the two copies goes on. The question is about the partner of this moment.
		return e.notFrozen(ctx, have)
	case st.Disk != drbd.Inconsistent || st.Linked():
		return mismatch()
	}
	unused, err := e.unused(ctx, have)
	if err == nil && !unused {
		err = mismatch()
	}
	return err
}

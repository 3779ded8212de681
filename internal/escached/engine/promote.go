package engine

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// lossNotice is how long DRBD may take to see that a silent peer is gone (timeout 2 s, ping 1.5 s), with room for a
	// loaded host.
	lossNotice = 6 * time.Second
	// handshake is how long a peer that is there may take to connect after a start.
	handshake = 10 * time.Second
	// promoteTries: while the loss of the peer is not noticed yet, the first try always fails. Within one try the kernel asks
	// the arbiter up to four times.
	promoteTries = 4
)

// mayPromote waits until DRBD's state says that this replica is current, or that it is not. It changes nothing but the
// state of two replicas that were never used.
func (e *Engine) mayPromote(ctx context.Context, v volume) error {
	start := e.now()
	for {
		st, up, err := e.replica(v.Minor)
		if err != nil {
			return err
		}
		if !up {
			return v.fail(escache.CodeInternal, "DRBD does not run the replica; see the kernel's log")
		}
		verdict, final := e.verdict(v, st, e.now().Sub(start))
		switch {
		case final && verdict == nil && neverUsed(v, st):
			if err := e.skipFirstSync(ctx, v); !errors.Is(err, drbd.ErrLinkLost) {
				return err
			}
		case final:
			return verdict
		}
		if err := pause.For(ctx, poll); err != nil {
			return err
		}
	}
}

// skipFirstSync declares two new replicas equal, after a look at the disk: what was partly filled by a resync must never be.
func (e *Engine) skipFirstSync(ctx context.Context, v volume) error {
	unused, err := e.unused(ctx, v)
	if err != nil {
		return err
	}
	if !unused {
		return v.fail(escache.CodeOutdated,
			"the replicas on %s and %s are both incomplete, and this one holds part of a resync; the current copy must return",
			e.cfg.Node, v.Peer.Name)
	}
	err = e.Replicator.SkipFirstSync(ctx, v.name()) // drbd.ErrLinkLost: the look at the state is not true any more
	crashpoint.Reach("dev_connect/first_sync_skipped")
	return err
}

// neverUsed reports two connected replicas of which both were just created: their content is equal as far as it matters.
func neverUsed(v volume, st drbd.Status) bool {
	return !v.Joined && st.Role == drbd.Secondary && st.Disk == drbd.Inconsistent && st.PeerDisk == drbd.Inconsistent &&
		st.Connection == drbd.Connected && !v.Formatted
}

// verdict judges one reading. final false means: look again.
func (e *Engine) verdict(v volume, st drbd.Status, waited time.Duration) (err error, final bool) {
	switch {
	case st.Role == drbd.Primary:
		return nil, true // an attempt that was killed half way
	case st.PeerRole == drbd.Primary && st.Linked():
		return v.fail(escache.CodeConnected, "it is connected on its peer %s; stop it there first",
			v.Peer.Name), waited > lossNotice
	case st.Disk == drbd.UpToDate:
		return nil, true
	case st.Disk == drbd.Consistent:
		// The peer may know better. If it stays away, the promotion asks the arbiter.
		return nil, waited > handshake/3
	case neverUsed(v, st):
		return nil, true
	case st.Disk == drbd.Inconsistent && !st.Linked() && !v.Formatted && !v.Joined:
		return v.fail(escache.CodePeerUnavailable, "the first connect needs both replicas, and %s does not answer; is its replica laid?",
			v.Peer.Name), waited > handshake
	case st.Negotiating():
		return v.fail(escache.CodeOutdated, "the replica on %s still finds out what it has missed (%s, %s)",
			e.cfg.Node, st.Disk, st.Connection), waited > handshake
	}
	return v.fail(escache.CodeOutdated, "the replica on %s is %s (%s, %.0f %% synchronised); connect on %s, or wait for the resync to end",
		e.cfg.Node, st.Disk, st.Connection, st.SyncedPercent, v.Peer.Name), true
}

// promote makes the replica Primary. It never forces: if the peer is lost, the kernel asks the arbiter, and a refusal is final.
func (e *Engine) promote(ctx context.Context, v volume) error {
	var err error
	for try := range promoteTries {
		if try > 0 {
			if err := pause.For(ctx, 2*poll); err != nil {
				return err
			}
		}
		before, _, readErr := e.replica(v.Minor)
		if readErr != nil {
			return readErr
		}
		if before.Role == drbd.Primary {
			return nil
		}
		err = e.Replicator.Promote(ctx, v.name())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, drbd.ErrNoCurrentData) && before.Disk == drbd.Consistent:
			return v.fail(escache.CodeFencingRefused,
				"%s does not know whether its replica is current, %s does not answer, and the arbiter did not allow it; bring %s back",
				e.cfg.Node, v.Peer.Name, v.Peer.Name)
		case errors.Is(err, drbd.ErrPeerNotFenced) && !before.Linked():
			return v.fail(escache.CodeFencingRefused, "%s does not answer, and the arbiter did not allow going on without it (%v)",
				v.Peer.Name, err)
		case errors.Is(err, drbd.ErrPeerNotFenced), errors.Is(err, drbd.ErrPeerPrimary):
			continue // the peer may be dead, and that was not noticed yet
		}
		return err
	}
	if errors.Is(err, drbd.ErrPeerNotFenced) {
		return v.fail(escache.CodeFencingRefused, "%s does not answer, and the arbiter did not allow going on without it (%v)",
			v.Peer.Name, err)
	}
	return err
}

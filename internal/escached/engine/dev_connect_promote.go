package engine

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/traces"
)

const (
	// lossNotice is how long DRBD may take to notice that its peer is gone: 3.5 s (timeout 2 s,
	// ping 1.5 s), and more on a loaded host.
	lossNotice = 6 * time.Second
	// handshake is how long a running peer may take to connect after a start.
	handshake = 10 * time.Second
	// promoteTries bounds the attempts to promote. The first always fails while DRBD has not
	// noticed the loss of the peer. In one attempt the kernel asks the arbiter up to four times.
	promoteTries = 4
)

// mayPromote waits until DRBD's state says whether this replica is current, and fails if it is not.
// It changes nothing, except that it declares two new replicas equal.
func (e *Engine) mayPromote(ctx context.Context, v volume.Volume) (err error) {
	ctx, step := traces.Begin(ctx, "wait for a current copy")
	defer step.Done(&err)
	start := e.Now()
	for {
		st, up, err := e.Replica(v.Minor)
		if err != nil {
			return err
		}
		if !up {
			return v.Fail(escache.CodeInternal, "DRBD does not run the replica; see the kernel's log")
		}
		verdict, final := e.verdict(v, st, e.Now().Sub(start))
		switch {
		case final && verdict == nil && neverUsed(v, st):
			if err := e.skipFirstSync(ctx, v); !errors.Is(err, drbd.ErrLinkLost) {
				return err
			}
		case final:
			return verdict
		}
		if err := pause.For(ctx, host.Poll); err != nil {
			return err
		}
	}
}

// skipFirstSync declares two new replicas equal. It reads the disk first, because a replica that a
// resync has partly filled must not be declared equal to anything.
func (e *Engine) skipFirstSync(ctx context.Context, v volume.Volume) error {
	unused, err := e.Unused(ctx, v)
	if err != nil {
		return err
	}
	if !unused {
		return v.Fail(escache.CodeOutdated,
			"the replicas on %s and %s are both incomplete, and this one has part of a resync; bring back the host with the current copy",
			e.Config.Node, v.Peer.Name)
	}
	err = e.Replicator.SkipFirstSync(ctx, v.Name()) // drbd.ErrLinkLost: the state has changed since it was read
	crashpoint.Reach("dev_connect/first_sync_skipped")
	return err
}

// neverUsed reports whether both replicas are connected and newly created. Their contents are then
// equal where it matters.
func neverUsed(v volume.Volume, st drbd.Status) bool {
	return !v.Joined && st.Role == drbd.Secondary && st.Disk == drbd.Inconsistent && st.PeerDisk == drbd.Inconsistent &&
		st.Connection == drbd.Connected && !v.Formatted
}

// verdict judges one reading of DRBD's state. If final is false, read again.
func (e *Engine) verdict(v volume.Volume, st drbd.Status, waited time.Duration) (err error, final bool) {
	switch {
	case st.Role == drbd.Primary:
		return nil, true // left by an attempt that was killed half way
	case st.PeerRole == drbd.Primary && st.Linked():
		return v.Fail(escache.CodeConnected, "it is connected on its peer %s; stop it there first",
			v.Peer.Name), waited > lossNotice
	case st.Disk == drbd.UpToDate:
		return nil, true
	case st.Disk == drbd.Consistent:
		// The peer may have newer data. If it does not come back, the promotion asks the arbiter.
		return nil, waited > handshake/3
	case neverUsed(v, st):
		return nil, true
	case st.Disk == drbd.Inconsistent && !st.Linked() && !v.Formatted && !v.Joined:
		return v.Fail(escache.CodePeerUnavailable,
			"the first connect needs both replicas, and %s does not answer; check that its replica is created",
			v.Peer.Name), waited > handshake
	case st.Negotiating():
		return v.Fail(escache.CodeOutdated, "the replica on %s is still finding out what it has missed (%s, %s); repeat the call",
			e.Config.Node, st.Disk, st.Connection), waited > handshake
	}
	return v.Fail(escache.CodeOutdated, "the replica on %s is %s (%s, %.0f %% synchronised); connect on %s, or wait for the resync to end",
		e.Config.Node, st.Disk, st.Connection, st.SyncedPercent, v.Peer.Name), true
}

// promote makes the replica Primary. It never uses force: if the peer is lost, the kernel asks the
// arbiter, and promote accepts a refusal.
func (e *Engine) promote(ctx context.Context, v volume.Volume) (err error) {
	ctx, step := traces.Begin(ctx, "promote the replica")
	defer step.Done(&err)
	for try := range promoteTries {
		if try > 0 {
			if err := pause.For(ctx, 2*host.Poll); err != nil {
				return err
			}
		}
		before, _, readErr := e.Replica(v.Minor)
		if readErr != nil {
			return readErr
		}
		if before.Role == drbd.Primary {
			return nil
		}
		err = e.Replicator.Promote(ctx, v.Name())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, drbd.ErrNoCurrentData) && before.Disk == drbd.Consistent:
			return v.Fail(escache.CodeFencingRefused,
				"%s does not know whether its replica is current, %s does not answer, and the arbiter did not allow it; bring %s back",
				e.Config.Node, v.Peer.Name, v.Peer.Name)
		case errors.Is(err, drbd.ErrPeerNotFenced) && !before.Linked():
			return v.Fail(escache.CodeFencingRefused, "%s does not answer, and the arbiter did not allow going on without it (%v)",
				v.Peer.Name, err)
		case errors.Is(err, drbd.ErrPeerNotFenced), errors.Is(err, drbd.ErrPeerPrimary):
			continue // the peer may be dead, and DRBD has not noticed yet
		}
		return err
	}
	if errors.Is(err, drbd.ErrPeerNotFenced) {
		return v.Fail(escache.CodeFencingRefused, "%s does not answer, and the arbiter did not allow going on without it (%v)",
			v.Peer.Name, err)
	}
	return err
}

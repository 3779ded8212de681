package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// ErrMayNotJoin means that a copy that was booted may not be linked with its peer yet.
var ErrMayNotJoin = errors.New("the copy was booted and is not linked yet")

// Booted reports whether a copy has no link since DRBD began to use its disk, and may not be current.
func Booted(st drbd.Status) bool {
	return st.Role == drbd.Secondary && st.Connection == drbd.StandAlone && st.Disk == drbd.Consistent
}

// ErrAttaching means that DRBD still attaches the disk of a copy without a link.
var ErrAttaching = errors.New("DRBD does not use the disk yet")

// attachTime is how long a call waits for that. drbdadm waits as long for one of its steps.
const attachTime = time.Minute

// Attaching reports whether DRBD still attaches the disk of a copy without a link. Whether the copy was booted shows only then.
// A command that makes the link would wait for that in the kernel, and ask nobody.
func Attaching(st drbd.Status) bool {
	return st.Role == drbd.Secondary && st.Connection == drbd.StandAlone && st.Negotiating()
}

// Join links a copy that was booted with its peer. It does nothing to any other copy.
//
// The peer may be a Primary whose I/O is frozen because it has lost this host and cannot reach its arbiter. If a
// booted copy comes back to it, DRBD 8.4 acknowledges the writes that were under way, although this copy lacks
// them, and drops the link once more. By then this copy takes itself for current. So before it is linked with
// a host that may be frozen, it is on record as outdated. With one that was fenced it is not linked before that one's map
// is known to be gone. Without an answer from the arbiter it is not linked. Then the error wraps ErrMayNotJoin.
//
// DRBD itself must not call the copy outdated: then it thaws such a Primary as after a short loss of the link, and
// fills nothing. The copy would lack what its disk had only in volatile memory when the power was lost.
// One that DRBD called outdated before the boot lacks nothing of that kind: the write of that mark flushed its disk.
func (h *Host) Join(ctx context.Context, v volume.Volume) error {
	st, up, err := h.Replica(v.Minor)
	if err != nil || !up || !Booted(st) {
		return err
	}
	if err := h.mayJoin(ctx, v); err != nil {
		return v.About(fmt.Errorf("on %s: %w: %w", h.Config.Node, ErrMayNotJoin, err))
	}
	crashpoint.Reach("join/allowed")
	return h.Replicator.Adjust(ctx, v.Name())
}

// mayJoin returns nil if the peer is not frozen, or if the copy here is on record as outdated. A copy goes on counting as
// long as that is not needed: the peer's disk may fail before it has filled this one.
func (h *Host) mayJoin(ctx context.Context, v volume.Volume) error {
	ctx, cancel := context.WithTimeout(ctx, h.Config.ArbiterTimeout)
	defer cancel()
	record, err := h.Records.Record(ctx, v.VolumeRef)
	if err != nil {
		if problem.Of(err).Code == escache.CodeNotFound {
			return nil
		}
		return fmt.Errorf("the record cannot be read: %w", err)
	}
	counts := !slices.Contains(record.Outdated, h.Config.Node)
	otherImage := record.ImageID != "" && v.ImageID != "" && record.ImageID != v.ImageID
	switch {
	case otherImage, record.Epoch < v.Epoch:
		return nil // such a record, which may have been set back, says nothing of the copy that is here
	case counts && slices.Contains(record.Fenced, v.Peer.Name):
		return fmt.Errorf("a client of %s is fenced, and may still have the volume's device", v.Peer.Name)
	case record.AttachedNode != v.Peer.Name, slices.Contains(record.Outdated, v.Peer.Name):
		return nil
	case counts && !record.InUse:
		return fmt.Errorf("%s gets the volume, and may be lost before it has it", v.Peer.Name)
	case counts:
		// If the power of both hosts was lost, and the peer stays away, the copy here is current.
		if err := h.Listens(ctx, net.JoinHostPort(v.Peer.Address, strconv.Itoa(v.Port))); err != nil {
			return fmt.Errorf("%s has the volume, and does not wait for the link: %w", v.Peer.Name, err)
		}
	}
	// It changes the record also if this copy is listed: the peer's csi-node may have seen it current before the boot, and
	// be about to take it off the list.
	return h.Records.OutdateSelf(ctx, escache.OutdateSelfRequest{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: h.Config.Node, Peer: v.Peer.Name, Booted: true,
	})
}

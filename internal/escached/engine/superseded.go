package engine

import (
	"context"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// superseded returns no error only if the record, read at this moment, proves that this host's copy is
// dispensable. It returns the volume as it is while its device is given up. No answer proves nothing.
// There are four proofs:
//
// With the link up, that the peer has all that was acknowledged, counts as a copy on record, and the
// volume was given to another node or taken from this one.
//
// Without the link, that a newer epoch has begun, the volume is not attached here, and this replica is
// outdated or no longer one of the volume's. Attachment elsewhere is not enough: until that node is
// promoted, the frozen copy here may be the only one.
//
// In either case, that Ceph has everything, and the volume was given to another node or taken from this
// one: see inCeph.
//
// In either case, that what was acknowledged here was discarded: see isDiscarded.
func (e *Engine) superseded(ctx context.Context, v volume.Volume, epoch int64) (next volume.Volume, err error) {
	st, up, err := e.Replica(v.Minor)
	if err != nil {
		return v, err
	}
	not := func(format string, args ...any) error {
		return v.Fail(escache.CodeNotSuperseded, format+"; the device stays", args...)
	}
	record, err := e.recordOver(ctx, v, epoch, not)
	if err != nil {
		return v, err
	}
	linked := up && st.Role == drbd.Primary && st.Linked()
	if linked {
		err = takenWithLink(v, record, st.PeerDisk, not)
	} else {
		err = takenWithoutLink(v, record, epoch, e.Config.Node, not)
	}
	discarded := isDiscarded(v, record, e.Config.Node)
	next = v
	next.Phase, next.PeerComplete = volume.Abandoning, err == nil && linked
	if !discarded {
		// Never an older one, which recordOver refuses. Not the record's: see authority.GivenUpIn. What was discarded
		// keeps its own: csi-controller may have it removed only up to the epoch in which it was discarded.
		next.Epoch = epoch
	}
	switch {
	case err == nil, discarded && record.InCeph:
		return next, nil
	case record.InCeph:
		return next, e.inCeph(ctx, v, record, not)
	}
	return next, err
}

// isDiscarded reports whether an operator has given up all that was acknowledged through the device here and is not in
// Ceph: the epoch of the device is not later than the one that was discarded, and this copy does not count. What is
// acknowledged later through that device was given up, too. Its Ceph client was fenced before. A copy that counts again
// was created again since, in a later epoch.
func isDiscarded(v volume.Volume, record escache.VolumeRecord, node string) bool {
	return record.DiscardedEpoch > 0 && v.Epoch <= record.DiscardedEpoch && !isCopy(record, node)
}

// recordOver returns the record if the attachment that the request speaks of is on it, and is not this
// host's.
func (e *Engine) recordOver(
	ctx context.Context, v volume.Volume, epoch int64, not func(string, ...any) error,
) (record escache.VolumeRecord, err error) {
	if epoch < v.Epoch {
		return record, not("epoch %d is older than %d, which was seen here", epoch, v.Epoch)
	}
	ctx, cancel := context.WithTimeout(ctx, e.Config.ArbiterTimeout)
	defer cancel()
	record, err = e.Records.Record(ctx, v.VolumeRef)
	switch {
	case err != nil:
		return record, not("the arbiter did not return the record (%v); repeat the call when it answers", err)
	case record.Epoch < epoch:
		return record, not("the record is of epoch %d, the request of %d", record.Epoch, epoch)
	case record.ImageID != "" && v.ImageID != "" && record.ImageID != v.ImageID:
		return record, not("the record is of image id %s, the replica of %s", record.ImageID, v.ImageID)
	case record.AttachedNode == e.Config.Node:
		return record, not("on record it is attached to %s itself in epoch %d", e.Config.Node, record.Epoch)
	case record.Epoch == v.Epoch && record.AttachedNode != "":
		return record, not("on record it is attached to %s in the epoch of the device here, %d", record.AttachedNode, record.Epoch)
	}
	return record, nil
}

// takenWithoutLink is the proof for a device whose link is down.
func takenWithoutLink(v volume.Volume, record escache.VolumeRecord, epoch int64, node string, not func(string, ...any) error) error {
	switch {
	case epoch == v.Epoch:
		return not("epoch %d is not newer than %d, which was seen here", epoch, v.Epoch)
	case !isCopy(record, node):
		return nil
	}
	return not("the record (epoch %d, attached to %q) does not list the replica on %s as outdated, so it may be the only current one",
		record.Epoch, record.AttachedNode, node)
}

// inCeph is the proof by a record that says that Ceph has everything. The record says so only after the
// holder of that moment had nothing dirty and could make nothing dirty any more: it wrote through, or had
// stopped. Before any cache writes back again it says the opposite. So what was acknowledged through the
// device here is in Ceph. If the volume was taken from this host, the device's Ceph client was fenced
// before, and a device that writes through acknowledges nothing since. Whatever its cache may hold nobody
// was told of.
//
// A device that writes back contradicts such a record, which may have been set back. It stays: only it
// can write back what is dirty.
func (e *Engine) inCeph(ctx context.Context, v volume.Volume, record escache.VolumeRecord, not func(string, ...any) error) error {
	dev, connected, err := e.Device(ctx, v.Name())
	switch {
	case err != nil:
		return err
	case connected && dev.Options.Mode != cache.Writethrough:
		return not("the record (epoch %d) says that Ceph has everything, and the cache here writes back", record.Epoch)
	}
	return nil
}

// takenWithLink is the proof for a device whose link is up.
func takenWithLink(v volume.Volume, record escache.VolumeRecord, peer escache.DiskState, not func(string, ...any) error) error {
	switch {
	case peer != drbd.UpToDate:
		return not("its peer %s is connected and does not have all that was written (%s)", v.Peer.Name, peer)
	case !isCopy(record, v.Peer.Name):
		return not("its peer %s is no current copy on record (replicas %v, outdated %v)", v.Peer.Name, record.Replicas, record.Outdated)
	default:
		return nil
	}
}

// isCopy reports whether the node has a current replica by the record, which may leave out where the
// replicas are.
func isCopy(record escache.VolumeRecord, node string) bool {
	return !slices.Contains(record.Outdated, node) && (len(record.Replicas) == 0 || slices.Contains(record.Replicas, node))
}

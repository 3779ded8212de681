package host

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/permit"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// OutdatePeer returns nil only if the peer of a volume is on record as outdated, and this host may go
// on without it. It asks what DRBD's handler asks when the peer is lost.
func (h *Host) OutdatePeer(ctx context.Context, v volume.Volume) error {
	return h.Records.OutdatePeer(ctx, escache.OutdatePeerRequest{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: h.Config.Node, Peer: v.Peer.Name, Epoch: v.Epoch,
	})
}

// TakePermit lets DRBD go on without a freeze when the peer of a volume is lost, if the arbiter puts
// the peer on record as outdated. The peer's copy must not be current: it has no disk, or is to be
// filled. If it fails, DRBD freezes I/O as before, or the permit's record says that this is not certain.
// The caller has locked the volume.
func (h *Host) TakePermit(ctx context.Context, v volume.Volume) error {
	before := h.Permits.Get(v.Name())
	if err := h.Permits.Set(v.Name(), permit.Asked); err != nil {
		return err
	}
	crashpoint.Reach("permit/asked")
	switch err := h.OutdatePeer(ctx, v); {
	case err == nil:
	case before == permit.None: // DRBD was told nothing
		return errors.Join(err, h.Permits.Drop(v.Name()))
	default:
		return errors.Join(err, h.DropPermit(ctx, v))
	}
	if err := h.Permits.Set(v.Name(), permit.Granted); err != nil {
		return err
	}
	crashpoint.Reach("permit/granted")
	return h.tellDRBD(ctx, v)
}

// DropPermit makes DRBD freeze I/O again when the peer of a volume is lost. It does nothing if the
// volume has no permit. The caller has locked the volume.
func (h *Host) DropPermit(ctx context.Context, v volume.Volume) error {
	if h.Permits.Get(v.Name()) == permit.None {
		return nil
	}
	if err := h.Permits.Set(v.Name(), permit.Asked); err != nil {
		return err
	}
	if err := h.tellDRBD(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("permit/freezes_again")
	return h.Permits.Drop(v.Name())
}

// tellDRBD makes DRBD do what the permit's record says, in the resource's file and in the kernel. A
// device without a disk reads the file when the disk is attached; until then it freezes nothing.
func (h *Host) tellDRBD(ctx context.Context, v volume.Volume) error {
	if _, err := h.WriteResource(v); err != nil {
		return err
	}
	st, up, err := h.Replica(v.Minor)
	if err != nil || !up || st.Disk.Lost() {
		return err
	}
	return h.Replicator.Freeze(ctx, v.Name(), h.Permits.Get(v.Name()) != permit.Granted)
}

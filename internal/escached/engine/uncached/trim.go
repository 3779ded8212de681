package uncached

import (
	"context"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/problem"
)

// Trim has the filesystem on the image discard its free space, if the arbiter's record is of this attachment. The
// request alone proves nothing: it may come late, from a csi-controller that does not lead any more, and the map of an
// image that is not in use here knows no later attachment.
func (m *Maps) Trim(ctx context.Context, req escache.TrimRequest) (escache.TrimResponse, error) {
	none := escache.TrimResponse{}
	ctx, done, err := m.Begin(ctx, req.VolumeRef, "trim", host.ChangeTimeout)
	if err != nil {
		return none, err
	}
	defer done()
	record, _, err := m.records.Get(req.VolumeRef)
	if err != nil {
		return none, err
	}
	if err := problem.IfLate(req.VolumeRef, req.Epoch, record.Epoch); err != nil {
		return none, err
	}
	maps, err := m.Images.Find(req.Pool, req.Image)
	switch {
	case err != nil:
		return none, err
	case len(maps) != 1 || maps[0].ImageID != record.ImageID:
		return none, problem.On(req.VolumeRef, escache.CodeNotConnected, "it is not connected on %s", m.Config.Node)
	}
	if err := m.onRecord(ctx, record); err != nil {
		return none, err
	}
	crashpoint.Reach("uncached/trim")
	return m.TrimDevice(ctx, req, maps[0].Path())
}

// onRecord returns an error unless the arbiter answers that the volume is attached to this node, in the epoch of the map.
func (m *Maps) onRecord(ctx context.Context, here Record) error {
	ctx, cancel := context.WithTimeout(ctx, m.Config.ArbiterTimeout)
	defer cancel()
	record, err := m.Records.Record(ctx, here.VolumeRef)
	switch {
	case err != nil:
		return fmt.Errorf("nothing is trimmed before csi-node on %s has read the record of %s/%s: %w",
			m.Config.Node, here.Pool, here.Image, err)
	case record.ImageID != "" && record.ImageID != here.ImageID:
		return problem.On(here.VolumeRef, escache.CodeIdentityMismatch, "the record is of image id %s, the map of %s",
			record.ImageID, here.ImageID)
	case record.AttachedNode != m.Config.Node, record.Epoch != here.Epoch:
		return problem.On(here.VolumeRef, escache.CodeStaleEpoch, "on record it is attached to %q in epoch %d, and was mapped on %s in "+
			"epoch %d; nothing is trimmed", record.AttachedNode, record.Epoch, m.Config.Node, here.Epoch)
	}
	return nil
}

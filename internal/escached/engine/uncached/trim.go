package uncached

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/problem"
)

// Trim has the filesystem on the image discard its free space.
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
	crashpoint.Reach("uncached/trim")
	return m.TrimDevice(ctx, req, maps[0].Path())
}

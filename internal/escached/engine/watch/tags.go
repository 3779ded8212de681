package watch

import (
	"context"
	"time"

	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// tagsEvery is how often Tags looks for volumes whose tags are not sure. It costs nothing while there are none.
const tagsEvery = 5 * time.Second

// Tags writes the tags of a volume again after a change of them has failed. If the host started before that, it would go
// by a change that its caller believes was not made, such as a removal. Tags returns when ctx ends.
func (w *Watcher) Tags(ctx context.Context) {
	for pause.For(ctx, tagsEvery) == nil {
		for _, v := range w.Volumes.Unsure() {
			if err := w.settleTags(ctx, v); err != nil {
				w.log.Warn("a change of a replica's tags failed, and they cannot be written again yet",
					"pool", v.Pool, "image", v.Image, "error", err)
			}
		}
	}
}

func (w *Watcher) settleTags(ctx context.Context, v volume.Volume) error {
	ctx, done, err := w.TryBegin(ctx, v.VolumeRef, host.WorkSettleTags, host.ChangeTimeout)
	if err != nil {
		return nil // a verb is running; the next round looks again
	}
	defer done()
	v, there := w.Volumes.Get(v.Name())
	if !there || !w.Volumes.IsUnsure(v.Name()) {
		return nil
	}
	return w.Retag(ctx, v, v)
}

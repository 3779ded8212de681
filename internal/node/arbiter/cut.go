package arbiter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/comparison"
	"github.com/escache/escache-csi/internal/node/kube"
)

// longCut is shorter than it takes to give a volume to another host, and to restore etcd to before that.
const longCut = 30 * time.Second

// cuts remembers since when hosts have asked and the API server has not answered.
type cuts struct {
	mu    sync.Mutex
	since map[escache.VolumeRef]cut
}

type cut struct {
	epoch int64
	begun time.Time
}

// heard takes the outcome of a question. One that nobody could decide begins a cut. After a refusal the record may
// only be believed once it is compared: what allows it later may be an older record.
func (c *cuts) heard(r escache.OutdatePeerRequest, err error, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, refused := errors.AsType[*authority.RefusedError](err)
	switch before, known := c.since[r.VolumeRef]; {
	case err == nil, errors.Is(err, kube.ErrNotFound):
		delete(c.since, r.VolumeRef)
	case refused:
		c.since[r.VolumeRef] = cut{epoch: r.Epoch} // since always
	case !known || before.epoch != r.Epoch:
		c.since[r.VolumeRef] = cut{r.Epoch, now}
	}
}

// long reports whether the host was refused, or has asked in vain for so long that the record may have been set back
// since it was read last.
func (c *cuts) long(r escache.OutdatePeerRequest, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	begun, known := c.since[r.VolumeRef]
	return known && begun.epoch == r.Epoch && now.Sub(begun.begun) >= longCut
}

// compared returns the record once csi-controller has compared it with the image's metadata. While this host was
// cut off, another one may have had the volume, and etcd may have been restored to before that.
func (a *Arbiter) compared(ctx context.Context, v *v1alpha1.CacheVolume, r escache.OutdatePeerRequest) (*v1alpha1.CacheVolume, error) {
	v, err := comparison.Ask(ctx, a.kube, v, func(ctx context.Context) (*v1alpha1.CacheVolume, error) {
		now, err := a.kube.VolumeOf(ctx, r.VolumeRef)
		if err == nil {
			_, err = authority.MayGoOnAlone(now, r, a.now())
		}
		return now, err
	})
	if errors.Is(err, authority.ErrRecordBehind) {
		return nil, &authority.RefusedError{Code: escache.CodeStaleEpoch, Reason: err.Error()}
	}
	return v, err
}

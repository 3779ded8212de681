package watch

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Times between two reads of the record of a volume that this node may have lost.
const (
	// recordInterval is for a volume whose I/O is frozen.
	recordInterval = 6 * time.Second
	// uncachedInterval is for one without a cache.
	uncachedInterval = 30 * time.Second
	// openInterval is for one without a cache that cannot be given up because its device is open. The
	// kubelet's unstage gives it up.
	openInterval = 5 * time.Minute
)

// abandonSuperseded makes escached give up the device of a volume that another node took over while
// this host was cut off. Otherwise its I/O would stay frozen, the containers that wait for it would
// not end, and the kubelet would never unstage the volume. Without a cache nothing is ever frozen, so
// the record of such a volume is always read: its map has the image's lock, and keeps the other node out.
func (w *Watch) abandonSuperseded(ctx context.Context, v *volume, s escache.VolumeStatus, now time.Time) {
	if !s.IOSuspended && !s.Uncached || now.Before(v.recordAfter) {
		return
	}
	v.recordAfter = now.Add(recordInterval)
	if s.Uncached {
		v.recordAfter = now.Add(uncachedInterval)
	}
	object, err := w.Kube.Volume(ctx, v.object.Name)
	if err != nil {
		if !errors.Is(err, kube.ErrUnavailable) {
			w.Logger.WarnContext(ctx, "cannot read the record of a volume that may have been taken over",
				"volume", v.object.Name, "error", err)
		}
		return
	}
	v.object = object
	if !authority.IsSuperseded(object, w.Node, s.Epoch) {
		return
	}
	log := w.Logger.With("volume", object.Name, "epoch", s.Epoch, "takenOverBy", object.Status.AttachedNode,
		"takenOverIn", object.Status.Epoch)
	err = w.Cache.Abandon(ctx, v.ref, authority.GivenUpIn(object, s.Epoch))
	problem := new(escache.Problem)
	switch {
	case err == nil:
		log.WarnContext(ctx, "abandoned the device of a volume that was taken over")
	case errors.As(err, &problem) && problem.Code == escache.CodeDeviceOpen && s.Uncached:
		v.recordAfter = now.Add(openInterval)
		log.WarnContext(ctx, "the device of a volume that was taken over is open; it is removed when the kubelet unstages it")
	case errors.As(err, &problem) && problem.Code == escache.CodeDeviceOpen:
		log.WarnContext(ctx, "I/O of a volume that was taken over fails from now on; its device is removed when the kubelet unstages it")
	default:
		log.WarnContext(ctx, "cannot abandon the device of a volume that was taken over; the next poll tries again", "error", err)
	}
}

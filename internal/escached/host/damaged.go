package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// setDamagedAside looks at the copy of a replica whose disk DRBD does not use, before DRBD does. A
// copy is damaged if its contents are, or if its disk has failed and missed writes. DRBD must not see
// such a copy's metadata. A host that was Primary when it lost its power is the source of the next
// resync, even if it is marked outdated, and would overwrite the good copy. So the copy is put on
// record as outdated, and gets fresh metadata: the peer fills it. If it is the only current copy it
// stays as it is. Until the arbiter has answered DRBD may not use it, and the error wraps
// cache.ErrCorrupt or cache.ErrForeign. DRBD may not use it either as long as nobody knows whether it is
// damaged. Then the error wraps cache.ErrUnchecked.
func (h *Host) setDamagedAside(ctx context.Context, v volume.Volume) error {
	failed := h.FailedDisks.Get(v.Name()) != faileddisk.Sound
	if !v.Formatted && !failed {
		return nil // it was never Primary here
	}
	id := cache.Identity{Pool: v.Pool, Image: v.Image, ImageID: v.ImageID}
	h.unchecked.Store(v.Name(), struct{}{})
	damage := h.Cache(v).Check(ctx, h.LocalDisk(v), id, v.Formatted)
	unchecked := isUnchecked(damage)
	if !unchecked {
		h.unchecked.Delete(v.Name())
	}
	switch damaged := errors.Is(damage, cache.ErrCorrupt) || errors.Is(damage, cache.ErrForeign); {
	case damaged:
	case !failed && unchecked:
		return v.About(fmt.Errorf("on %s: DRBD does not use the copy before that is known: %w", h.Config.Node, orUnchecked(damage)))
	case !failed:
		return nil // what else is wrong shows when it is used
	case damage != nil:
		return v.About(fmt.Errorf("on %s: the disk has failed and does not work yet: %w", h.Config.Node, damage))
	default:
		damage = fmt.Errorf("its disk has failed: %w", cache.ErrCorrupt)
	}
	asking, cancel := context.WithTimeout(ctx, h.Config.ArbiterTimeout)
	defer cancel()
	err := h.Records.OutdateSelf(asking, escache.OutdateSelfRequest{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: h.Config.Node, Peer: v.Peer.Name,
	})
	if err != nil {
		code := problem.Of(err).Code
		if code == escache.CodeOutdated {
			return h.FailedDisks.Drop(v.Name()) // there is no other copy
		}
		if status := escache.StatusOf(code); status == http.StatusConflict || status == http.StatusNotFound {
			return nil
		}
		told := err.Error() // its code is not this one's
		return v.About(fmt.Errorf("on %s: %w, and the arbiter could not be told: %s", h.Config.Node, damage, told))
	}
	crashpoint.Reach("damaged/on_record")
	if err := h.Replicator.CreateMetadata(ctx, v.Name()); err != nil {
		return err
	}
	crashpoint.Reach("damaged/metadata_made")
	empty := v
	empty.Formatted, empty.Joined = false, true
	if err := h.Retag(ctx, v, empty); err != nil {
		return err
	}
	return h.FailedDisks.Drop(v.Name())
}

// isUnchecked reports whether a Check has ended before it knew anything.
func isUnchecked(err error) bool {
	return errors.Is(err, cache.ErrUnchecked) || errors.Is(err, command.ErrStuck) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// orUnchecked gives an error of isUnchecked its kind, if it has not got it.
func orUnchecked(err error) error {
	if errors.Is(err, cache.ErrUnchecked) {
		return err
	}
	return fmt.Errorf("%w: %w", cache.ErrUnchecked, err)
}

// Unchecked reports whether DRBD does not use a copy here because it is not known yet whether it is in order: it is
// being read, or could not be read to its end.
func (h *Host) Unchecked(name string) bool {
	_, unchecked := h.unchecked.Load(name)
	return unchecked
}

// ReadTime returns how long the copy here of a volume may take to be read: 0 without a copy.
func (h *Host) ReadTime(name string) time.Duration {
	v, ok := h.Volumes.Get(name)
	if !ok {
		return 0
	}
	return h.Cache(v).ReadTime(v.CacheBytes)
}

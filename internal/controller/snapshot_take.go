package controller

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

const (
	// holdTime bounds how long a volume's I/O rests for a snapshot. Most of it is for a node that is slow to take note of it.
	holdTime = 30 * time.Second
	// releaseTime bounds the call that ends a hold; after holdTime the host does it by itself.
	releaseTime = 10 * time.Second
	// holdableDirty is how much may be dirty when I/O is about to rest, in bytes: it is written back first, and part of it meanwhile.
	holdableDirty = 256 << 20
	// flushBite is how long the host writes back before it is looked at what is left. Under constant writes it never says "clean".
	flushBite = 5 * time.Second
)

// take has the image hold everything that was written to the volume, and takes a snapshot of it. Whether that was so all the time is seen
// afterwards.
func (s *service) take(ctx context.Context, v *v1alpha1.CacheVolume, ref SnapshotRef) (Snapshot, error) {
	if v.Status.FlushAttached() {
		if err := s.finishFlush(ctx, v); err != nil {
			return Snapshot{}, err
		}
	}
	if v.Status.AttachedNode != "" {
		return s.takeHeld(ctx, v, ref)
	}
	if _, err := s.settle(ctx, v); err != nil {
		return Snapshot{}, err
	}
	if !authority.InCeph(v) {
		if err := s.writeBack(ctx, v, authority.Current(v)); err != nil {
			return Snapshot{}, err
		}
	}
	taken, err := s.Images.TakeSnapshot(ctx, ref)
	if err != nil {
		return Snapshot{}, err
	}
	return taken, s.again(ctx, v)
}

// takeHeld takes a snapshot of a volume that a node has, while its I/O rests.
func (s *service) takeHeld(ctx context.Context, v *v1alpha1.CacheVolume, ref SnapshotRef) (Snapshot, error) {
	node := v.Status.AttachedNode
	if err := s.flushUntilHoldable(ctx, v, node); err != nil {
		return Snapshot{}, err
	}
	until, err := s.Hosts.Hold(ctx, node, refOf(v), holdTime)
	if err != nil {
		if unreachable(err) { // it may be held all the same
			_ = s.release(ctx, v, node)
		}
		return Snapshot{}, fmt.Errorf("hold its I/O on node %s: %w", node, err)
	}
	crashpoint.Reach("create_snapshot/held")
	taken, err := s.takeUntil(ctx, v, node, ref, until)
	if released := s.release(ctx, v, node); released != nil {
		s.Log.WarnContext(ctx, "the host releases the volume by itself", "volume", v.Name, "node", node, "until", until, "error", released)
	}
	if err != nil {
		return Snapshot{}, err
	}
	return taken, s.again(ctx, v)
}

// flushUntilHoldable writes back while I/O goes on, so that it rests shortly.
func (s *service) flushUntilHoldable(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	for {
		flushed, err := s.Hosts.Flush(ctx, node, refOf(v), flushBite)
		if problem, ok := errors.AsType[*escache.Problem](err); ok && problem.Code == escache.CodeHeld {
			return nil // by a call that was interrupted: it is clean
		}
		if err != nil {
			return fmt.Errorf("write it back on node %s: %w", node, err)
		}
		if flushed.DirtyBytes <= holdableDirty {
			return nil
		}
		if flushTime(ctx) < flushBite+holdTime {
			return fmt.Errorf("node %s writes it back, %s are left; the repeated call goes on: %w",
				node, v1alpha1.HumanBytes(flushed.DirtyBytes), ErrBusy)
		}
	}
}

// takeUntil takes the snapshot, and looks whether the hold that ends then has lasted.
func (s *service) takeUntil(ctx context.Context, v *v1alpha1.CacheVolume, node string, ref SnapshotRef, until time.Time) (Snapshot, error) {
	taken, err := s.Images.TakeSnapshot(ctx, ref)
	if err != nil {
		return Snapshot{}, err
	}
	crashpoint.Reach("create_snapshot/taken_held")
	status, err := s.Hosts.Status(ctx, node, refOf(v))
	if err != nil {
		return Snapshot{}, fmt.Errorf("ask node %s whether it was held: %w", node, err)
	}
	if status.HeldUntil == nil || !status.HeldUntil.Equal(until) || status.Epoch != v.Status.Epoch {
		return Snapshot{}, fmt.Errorf("node %s went on writing before it was there; the repeated call takes another: %w", node, ErrBusy)
	}
	return taken, nil
}

func (s *service) release(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return s.Hosts.Release(ctx, node, refOf(v))
}

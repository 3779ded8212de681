package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

const (
	// holdTime bounds how long a volume's I/O is suspended for a snapshot. Most of it is for a node
	// that is slow to notice.
	holdTime = 30 * time.Second
	// releaseTime bounds the call that ends a hold. After holdTime the host ends it by itself.
	releaseTime = 10 * time.Second
	// holdableDirty is how many bytes may be dirty when I/O is about to be suspended. They are
	// written back first, and partly meanwhile.
	holdableDirty = 256 << 20
	// flushBite is how long one flush may take before the host is asked again how much is dirty.
	// Under constant writes a flush never ends clean.
	flushBite = 5 * time.Second
	// holdPause is the time until a host that was busy with the volume is asked again.
	holdPause = 500 * time.Millisecond
)

// TakeSnapshot makes the image hold everything that was written to the volume, and takes a snapshot
// of the image. It checks afterwards that the image held everything all the time.
func (s *Steps) TakeSnapshot(ctx context.Context, v *v1alpha1.CacheVolume, ref SnapshotRef) (Snapshot, error) {
	if v.Status.FlushAttached() {
		if err := s.FinishFlush(ctx, v); err != nil {
			return Snapshot{}, err
		}
	}
	if v.Status.AttachedNode != "" {
		return s.takeHeld(ctx, v, ref)
	}
	if _, err := s.Settle(ctx, v); err != nil {
		return Snapshot{}, err
	}
	if !authority.InCeph(v) {
		if err := s.WriteBack(ctx, v, authority.Current(v)); err != nil {
			return Snapshot{}, err
		}
	}
	if err := s.notSetBack(ctx, v); err != nil {
		return Snapshot{}, err
	}
	taken, err := s.Images.TakeSnapshot(ctx, ref)
	if err != nil {
		return Snapshot{}, err
	}
	return taken, s.again(ctx, v)
}

// takeHeld takes a snapshot of an attached volume while its I/O is suspended.
func (s *Steps) takeHeld(ctx context.Context, v *v1alpha1.CacheVolume, ref SnapshotRef) (Snapshot, error) {
	node := v.Status.AttachedNode
	if err := s.flushUntilHoldable(ctx, v, node); err != nil {
		return Snapshot{}, err
	}
	until, err := s.hold(ctx, v, node)
	if err != nil {
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

// flushUntilHoldable writes back while I/O goes on, so that I/O is suspended for a short time only.
func (s *Steps) flushUntilHoldable(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	for {
		status, err := s.Hosts.Status(ctx, node, cachevolume.Ref(v))
		if err != nil {
			return fmt.Errorf("ask node %s how much is dirty: %w", node, err)
		}
		dirty := status.DirtyBytes
		if status.HeldUntil != nil || dirty != nil && *dirty <= holdableDirty {
			return nil // held by a call that was interrupted, it is clean
		}
		if dirty != nil && flushTime(ctx) < flushBite+holdTime {
			return fmt.Errorf("node %s writes it back, %s are left; the repeated call goes on: %w",
				node, v1alpha1.HumanBytes(*dirty), ErrBusy)
		}
		if _, err := s.Hosts.Flush(ctx, node, cachevolume.Ref(v), flushBite); err != nil {
			return fmt.Errorf("write it back on node %s: %w", node, err)
		}
	}
}

// hold suspends I/O. It waits for what still runs on the host, for example a flush that an earlier
// call did not wait for.
func (s *Steps) hold(ctx context.Context, v *v1alpha1.CacheVolume, node string) (time.Time, error) {
	for {
		until, err := s.Hosts.Hold(ctx, node, cachevolume.Ref(v), holdTime)
		if unreachable(err) { // it may be held all the same
			return until, errors.Join(err, s.release(ctx, v, node))
		}
		if Code(err) != codes.Aborted || flushTime(ctx) < holdTime {
			return until, err
		}
		select {
		case <-ctx.Done():
			return until, ctx.Err()
		case <-time.After(holdPause):
		}
	}
}

// takeUntil takes the snapshot, and then checks that the hold, which ends at until, has lasted.
func (s *Steps) takeUntil(ctx context.Context, v *v1alpha1.CacheVolume, node string, ref SnapshotRef, until time.Time) (Snapshot, error) {
	taken, err := s.Images.TakeSnapshot(ctx, ref)
	if err != nil {
		return Snapshot{}, err
	}
	crashpoint.Reach("create_snapshot/taken_held")
	status, err := s.Hosts.Status(ctx, node, cachevolume.Ref(v))
	if err != nil {
		return Snapshot{}, fmt.Errorf("ask node %s whether it was held: %w", node, err)
	}
	if status.HeldUntil == nil || !status.HeldUntil.Equal(until) || status.Epoch != v.Status.Epoch {
		return Snapshot{}, fmt.Errorf("node %s resumed writing before the snapshot was there; the repeated call takes another one: %w",
			node, ErrBusy)
	}
	return taken, nil
}

func (s *Steps) release(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return s.Hosts.Release(ctx, node, cachevolume.Ref(v))
}

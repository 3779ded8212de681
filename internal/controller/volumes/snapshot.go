package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/pause"
)

// HoldTime bounds how long a volume's I/O is suspended for a snapshot. Most of it is for a node that
// is slow to notice.
const HoldTime = 30 * time.Second

const (
	// releaseTime bounds the call that ends a hold. When the hold's time is up, the host ends it by
	// itself.
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

// SnapshotSource is a volume, and the snapshot of its image that is wanted.
type SnapshotSource struct {
	Volume *v1alpha1.CacheVolume
	Ref    SnapshotRef
}

// VolumeError is the failure of one of several volumes.
type VolumeError struct {
	Volume string
	Cause  error
}

func (e *VolumeError) Error() string { return "volume " + e.Volume + ": " + e.Cause.Error() }

func (e *VolumeError) Unwrap() error { return e.Cause }

// TakeSnapshot makes the image hold everything that was written to the volume, and takes a snapshot
// of the image. It checks afterwards that the image held everything all the time.
func (s *Steps) TakeSnapshot(ctx context.Context, v *v1alpha1.CacheVolume, ref SnapshotRef) (Snapshot, error) {
	taken, err := s.TakeSnapshots(ctx, []SnapshotSource{{v, ref}}, HoldTime)
	if failed, ok := errors.AsType[*VolumeError](err); ok {
		err = failed.Cause // the caller names the volume
	}
	if err != nil {
		return Snapshot{}, err
	}
	return taken[0], nil
}

// TakeSnapshots takes a snapshot of each volume, all of one moment: the I/O of all that are attached
// is suspended before the first snapshot is taken, for longest at most (whole seconds), and goes on
// after the last. The I/O of one volume alone may go on in its cache. Detached ones are written back before. The caller
// holds the locks of all. If it fails, with a VolumeError, the snapshots that were taken must not be used.
func (s *Steps) TakeSnapshots(ctx context.Context, sources []SnapshotSource, longest time.Duration) ([]Snapshot, error) {
	h := &holding{Steps: s, sources: sources, longest: longest, held: make([]hold, len(sources)), taken: make([]Snapshot, len(sources))}
	if err := h.each(func(i int) error { return s.prepareSnapshot(ctx, sources[i].Volume, longest) }); err != nil {
		return nil, err
	}
	err := h.take(ctx)
	h.release(ctx)
	if err != nil {
		return nil, err
	}
	return h.taken, h.each(func(i int) error { return s.again(ctx, sources[i].Volume) })
}

// prepareSnapshot writes back what is dirty: all of it of a detached volume; of an attached one as
// much as I/O that goes on allows.
func (s *Steps) prepareSnapshot(ctx context.Context, v *v1alpha1.CacheVolume, longest time.Duration) error {
	if v.Status.UncachedAttached() && !v.Status.FlushAttached() {
		return fmt.Errorf("volume %s is attached without a cache to node %s, where nothing can suspend its I/O; stop its pod, or wait "+
			"until it runs in group %s again: %w", v.Name, v.Status.AttachedNode, v.Spec.Group, ErrRefused)
	}
	if v.Status.AttachedNode != "" && !v.Status.FlushAttached() {
		// The node may have a device of an earlier attachment, and another one the volume, if the record was set back.
		if err := s.NotBehind(ctx, v); err != nil {
			return err
		}
		if err := s.Images.Settled(ctx, ImageOf(v)); err != nil { // while I/O goes on
			return err
		}
		return s.flushUntilHoldable(ctx, v, v.Status.AttachedNode, longest)
	}
	if err := s.WriteBackDetached(ctx, v); err != nil {
		return err
	}
	_, err := s.notSetBack(ctx, v)
	return err
}

// flushUntilHoldable writes back while I/O goes on, so that I/O is suspended for a short time only.
func (s *Steps) flushUntilHoldable(ctx context.Context, v *v1alpha1.CacheVolume, node string, longest time.Duration) error {
	for {
		status, err := s.Hosts.Status(ctx, node, cachevolume.Ref(v))
		if err != nil {
			return fmt.Errorf("ask node %s how much is dirty: %w", node, err)
		}
		dirty, held := status.DirtyBytes, status.HeldUntil != nil // by a call that was interrupted
		if held && v.Spec.Engine() == v1alpha1.CacheEngineLog {
			// Its users have gone on writing. An older escached would only make that hold longer.
			if err := s.releaseOn(ctx, v, node); err != nil {
				return fmt.Errorf("end an earlier hold on node %s: %w", node, err)
			}
			held = false
		}
		if held || dirty != nil && *dirty <= holdableDirty {
			return nil // what is held is clean
		}
		if dirty != nil && flushTime(ctx, flushLongest) < flushBite+longest {
			s.stillDirty(ctx, v, node, *dirty)
			return fmt.Errorf("node %s writes it back; the repeated call goes on: %w", node, ErrBusy)
		}
		if _, err := s.Hosts.Flush(ctx, cachevolume.On(v, node), flushBite); err != nil {
			return fmt.Errorf("write it back on node %s: %w", node, err)
		}
	}
}

// holding is volumes whose I/O rests at one moment. The slices are as long as sources.
type holding struct {
	*Steps

	sources []SnapshotSource
	longest time.Duration
	begun   time.Time // before the first hold
	held    []hold
	taken   []Snapshot
}

// hold is the suspended I/O of a volume; zero for one that is not held.
type hold struct {
	asked time.Time // by this machine's clock
	until time.Time // when it ends, by the host's clock
}

// each calls do for all volumes at once, and returns the error of the first one that has one.
func (h *holding) each(do func(i int) error) error {
	failures := make([]error, len(h.sources))
	var wait sync.WaitGroup
	for i := range h.sources {
		wait.Go(func() { failures[i] = do(i) })
	}
	wait.Wait()
	for i, err := range failures {
		if err != nil {
			return &VolumeError{Volume: h.sources[i].Volume.Name, Cause: err}
		}
	}
	return nil
}

// take holds all volumes, then takes all snapshots, and then checks that all holds have lasted.
func (h *holding) take(ctx context.Context) error {
	h.begun = time.Now()
	if err := h.each(func(i int) error { return h.hold(ctx, i) }); err != nil {
		return err
	}
	crashpoint.Reach("create_snapshot/held")
	inTime, cancel := h.inTime(ctx)
	defer cancel()
	err := h.each(func(i int) (err error) {
		h.taken[i], err = h.Images.TakeSnapshot(inTime, h.sources[i].Ref)
		h.reach("create_group_snapshot/one_taken")
		return err
	})
	if err != nil && inTime.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: I/O rests for %s at most, and Ceph did not take the snapshot in that time (%s); the repeated call takes "+
			"another. If this lasts, see why Ceph is slow, or raise maxSeconds of a group snapshot's class",
			ErrBusy, h.longest, err.Error())
	}
	if err != nil {
		return err
	}
	crashpoint.Reach("create_snapshot/taken_held")
	return h.each(func(i int) error { return h.lasted(ctx, i) })
}

// inTime ends before the first hold does: a hold's time counts from after the host was asked.
func (h *holding) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	var first time.Time
	for _, held := range h.held {
		if !held.asked.IsZero() && (first.IsZero() || held.asked.Before(first)) {
			first = held.asked
		}
	}
	if first.IsZero() { // nothing is held
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, first.Add(h.longest))
}

// reach is a crash point that only calls about several volumes have.
func (h *holding) reach(point string) {
	if len(h.sources) > 1 {
		crashpoint.Reach(point)
	}
}

// hold suspends the I/O of a volume that is attached. It waits for what still runs on the host, for
// example a flush that an earlier call did not wait for.
func (h *holding) hold(ctx context.Context, i int) error {
	v := h.sources[i].Volume
	node := v.Status.AttachedNode
	if node == "" {
		return nil
	}
	rests := h.pauses(v)
	for {
		asked := time.Now()
		held, err := h.Hosts.Hold(ctx, cachevolume.On(v, node), h.longest, rests)
		switch {
		case err == nil:
			h.held[i] = hold{asked: asked, until: held.HeldUntil} // it is released in any case
			if rests && !held.Paused {
				return cannotPause(node, "it does not say that I/O rests")
			}
			h.reach("create_group_snapshot/one_held")
			return nil
		case rests && isUnknown(err):
			return cannotPause(node, err.Error())
		case unreachable(err): // it may be held all the same
			return fmt.Errorf("hold its I/O on node %s: %w", node, errors.Join(err, h.releaseOn(ctx, v, node)))
		case Code(err) != codes.Aborted || !h.mayWait(ctx) || pause.For(ctx, holdPause) != nil:
			return fmt.Errorf("hold its I/O on node %s: %w", node, err)
		}
	}
}

// pauses reports whether a volume's host must be told to have I/O rest: otherwise the engine log takes writes during
// a hold, and the volume has no moment in common with others. Other engines have it rest anyway, also on a host whose
// escached is too old to be asked.
func (h *holding) pauses(v *v1alpha1.CacheVolume) bool {
	return len(h.sources) > 1 && v.Spec.Engine() == v1alpha1.CacheEngineLog
}

// isUnknown reports whether a host has refused a request as one that it does not understand.
func isUnknown(err error) bool {
	problem, answered := errors.AsType[*escache.Problem](err)
	return answered && problem.Code == escache.CodeInvalidRequest
}

func cannotPause(node, answer string) error {
	return fmt.Errorf("the escached of node %s is too old to suspend the I/O of a volume with cacheEngine log (%s); "+
		"upgrade escached there, or detach the volume: %w", node, answer, ErrRefused)
}

// mayWait reports whether there is time to wait for a host that is busy: enough must be left for the
// snapshot, and volumes that are held already must not rest for long.
func (h *holding) mayWait(ctx context.Context) bool {
	if len(h.sources) > 1 && time.Since(h.begun) > h.longest/2 {
		return false
	}
	return flushTime(ctx, flushLongest) >= h.longest
}

// lasted checks that the hold of a volume has not ended.
func (h *holding) lasted(ctx context.Context, i int) error {
	if h.held[i].until.IsZero() {
		return nil
	}
	v := h.sources[i].Volume
	node := v.Status.AttachedNode
	status, err := h.Hosts.Status(ctx, node, cachevolume.Ref(v))
	if err != nil {
		return fmt.Errorf("ask node %s whether it was held: %w", node, err)
	}
	if status.HeldUntil == nil || !status.HeldUntil.Equal(h.held[i].until) || status.Epoch != v.Status.Epoch {
		return fmt.Errorf("node %s resumed writing before the snapshot was there; the repeated call takes another one: %w", node, ErrBusy)
	}
	return nil
}

// release lets the I/O of all go on.
func (h *holding) release(ctx context.Context) {
	_ = h.each(func(i int) error {
		if h.held[i].until.IsZero() {
			return nil
		}
		v := h.sources[i].Volume
		if err := h.releaseOn(ctx, v, v.Status.AttachedNode); err != nil {
			h.Log.WarnContext(ctx, "the host releases the volume by itself",
				"volume", v.Name, "node", v.Status.AttachedNode, "until", h.held[i].until, "error", err)
		}
		h.reach("create_group_snapshot/one_released")
		return nil
	})
}

func (s *Steps) releaseOn(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	return s.Hosts.Release(ctx, cachevolume.On(v, node))
}

package volumes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

const (
	// flushLongest bounds a flush that a call waits for.
	flushLongest = time.Minute
	// flushMargin is the part of a call's time that is kept for stopping the device and for the
	// answer.
	flushMargin = 5 * time.Second
)

// UnfinishedError says that the time was up before everything was in Ceph. The next call goes on. It is
// ErrBusy.
type UnfinishedError struct {
	Volume, Node string
	LeftBytes    int64
}

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("node %s writes back volume %s; the repeated call goes on: %v", e.Node, e.Volume, ErrBusy)
}

// Unwrap makes errors.Is true for ErrBusy.
func (e *UnfinishedError) Unwrap() error { return ErrBusy }

// WriteBackDetached has the cache of a volume written back that no pod has. Afterwards everything is in
// Ceph, and no node has the volume. No pod is needed for that: a host with a current copy does it. One bite
// takes at most longest, apart from connecting the device. Then the error is an *UnfinishedError. A volume
// that a node has is authority.ErrAttached.
func (l *Locked) WriteBackDetached(ctx context.Context, id string, longest time.Duration) error {
	_, err := under(l, id, WritingBack, func() (struct{}, error) {
		return struct{}{}, l.steps.ReportBehind(ctx, id, l.steps.writeBackUsable(ctx, id, longest))
	})
	return err
}

func (s *Steps) writeBackUsable(ctx context.Context, id string, longest time.Duration) error {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return err
	}
	if err := usable(v); err != nil {
		return err
	}
	return s.writeBackDetached(ctx, v, longest)
}

// usable refuses a volume that is not there for its users now, or whose record is not the newest.
func usable(v *v1alpha1.CacheVolume) error {
	switch {
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return fmt.Errorf("volume %s: nothing proves which of its copies counts: kubectl escache adopt --all says how to decide: %w",
			v.Name, ErrRefused)
	case v.Status.Phase != v1alpha1.VolumeReady || !v.DeletionTimestamp.IsZero():
		return fmt.Errorf("volume %s is being made, released or deleted: %w", v.Name, ErrRefused)
	case v.BeingReleased():
		return fmt.Errorf("volume %s is being released: %w", v.Name, ErrRefused)
	case meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks):
		return fmt.Errorf("volume %s: a host has data that the record does not know; see docs/restore-etcd.md: %w", v.Name, ErrRefused)
	}
	return nil
}

// WriteBackDetached is that of Locked, without its checks and in one long bite, for a caller that holds the
// lock of the volume.
func (s *Steps) WriteBackDetached(ctx context.Context, v *v1alpha1.CacheVolume) error {
	return s.writeBackDetached(ctx, v, flushLongest)
}

func (s *Steps) writeBackDetached(ctx context.Context, v *v1alpha1.CacheVolume, longest time.Duration) error {
	switch {
	case v.Status.FlushAttached():
		return s.resumeFlush(ctx, v, longest)
	case v.Status.AttachedNode != "":
		return fmt.Errorf("volume %s: node %s has it, and writes it back itself: %w", v.Name, v.Status.AttachedNode, authority.ErrAttached)
	}
	if _, err := s.Settle(ctx, v); err != nil || authority.InCeph(v) {
		return err
	}
	return s.writeBack(ctx, v, authority.Current(v), longest)
}

// WriteBack makes a node with a current copy write back what is dirty, so that the truth is in
// Ceph. That node gets the volume as any other would, by compare-and-swap and with an epoch of its
// own. So no other node can have it meanwhile, and after a crash the record says what to go on
// with.
func (s *Steps) WriteBack(ctx context.Context, v *v1alpha1.CacheVolume, current []string) error {
	return s.writeBack(ctx, v, current, flushLongest)
}

func (s *Steps) writeBack(ctx context.Context, v *v1alpha1.CacheVolume, current []string, longest time.Duration) error {
	if v.Status.FlushAttached() {
		return s.resumeFlush(ctx, v, longest)
	}
	reports := s.Reports(ctx, v, v.Spec.Replicas)
	// The flush gets an epoch of its own. Afterwards nothing could tell that the record was set back.
	if err := seenLater(v, reports); err != nil {
		return err
	}
	// Without an image no host can flush. The epoch stays, because a person decides by it what becomes of the cache.
	if err := s.lost(ctx, v, s.NotBehind(ctx, v)); err != nil {
		return err
	}
	able, err := authority.Flushers(v, current, reports)
	if err != nil {
		if stake := authority.AtStake(v, reports, s.LastSeen(ctx, v.Spec.Group)); stake != "" {
			return fmt.Errorf("%w; %s", err, stake)
		}
		return err
	}
	var failures []error
	if err := s.FenceAgain(ctx, v); err != nil {
		return err
	}
	for _, node := range able {
		s.Log.InfoContext(ctx, "writing back", "volume", v.Name, "node", node, "dirtyBytes", v.Status.DirtyBytes)
		v.Status.Epoch++
		v.Status.AttachedNode, v.Status.FlushEpoch, v.Status.ClientAddress, v.Status.WriteThrough = node, v.Status.Epoch, "", nil
		if err := s.UpdateStatus(ctx, v, "node "+node+" has it to write back its cache"); err != nil {
			return err
		}
		crashpoint.Reach("flush/attached")
		if err = s.finishFlush(ctx, v, longest); err == nil || v.Status.FlushAttached() {
			return err
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// resumeFlush goes on with a flush that the record has under way, unless the record was set back to that.
func (s *Steps) resumeFlush(ctx context.Context, v *v1alpha1.CacheVolume, longest time.Duration) error {
	if err := s.newest(ctx, v, s.Reports(ctx, v, s.WellReplicas(v))); err != nil {
		return err
	}
	return s.finishFlush(ctx, v, longest)
}

// finishFlush goes on with a flush from wherever it was, and ends its attachment once everything is
// in Ceph. The attachment also ends if the node cannot flush, so that another one can try, or if the
// image is gone. It stays if only time is missing.
func (s *Steps) finishFlush(ctx context.Context, v *v1alpha1.CacheVolume, longest time.Duration) error {
	failure := s.lost(ctx, v, s.Connectable(ctx, v))
	if _, gone := errors.AsType[*lostImageError](failure); failure != nil && !gone {
		return failure
	}
	node, trims := v.Status.AttachedNode, v.Status.TrimAttached()
	if failure == nil || trims {
		failure = s.flush(ctx, v, node, longest)
	}
	switch Code(failure) { //nolint:exhaustive // the rest is the node's own trouble
	case codes.Aborted, codes.DeadlineExceeded, codes.Canceled:
		return failure
	}
	if err := s.again(ctx, v); err != nil {
		return err
	}
	err := s.TakeFrom(ctx, v, node, func(holder authority.Report, death authority.Death) (authority.Detachment, error) {
		return authority.EndFlush(v, failure == nil, holder, death)
	})
	if trims && err == nil {
		return nil // nothing was to be written back, and a host that did not answer is fenced
	}
	if failure != nil && err != nil {
		return fmt.Errorf("%w; and it cannot be taken from node %s: %w", failure, node, err)
	}
	if failure == nil && err == nil && !authority.InCeph(v) {
		return fmt.Errorf("node %s has written back volume %s, and does not report a clean, current copy: %w", node, v.Name, ErrUnavailable)
	}
	return errors.Join(failure, err)
}

// flush connects the volume on a node, writes back its cache and stops the device.
func (s *Steps) flush(ctx context.Context, v *v1alpha1.CacheVolume, node string, longest time.Duration) error {
	if v.Status.TrimAttached() {
		return s.stopTrimmed(ctx, v) // Ceph has everything
	}
	if _, err := s.abandon(ctx, v, node); err != nil {
		return err
	}
	err := s.Hosts.DevConnect(ctx, node, v.Status.HostID(node), cachevolume.ConnectRequest(v))
	if err != nil {
		return fmt.Errorf("connect volume %s on node %s to write it back: %w", v.Name, node, err)
	}
	crashpoint.Reach("flush/connected")
	longest = flushTime(ctx, longest)
	if longest < time.Second {
		return fmt.Errorf("volume %s is connected on node %s, and the call's time is up before it is written back; "+
			"the repeated call goes on: %w", v.Name, node, ErrBusy)
	}
	flushed, err := s.Hosts.Flush(ctx, cachevolume.On(v, node), longest)
	if err != nil {
		return fmt.Errorf("write back volume %s on node %s: %w", v.Name, node, err)
	}
	if !flushed.Clean {
		s.stillDirty(ctx, v, node, flushed.DirtyBytes)
		return &UnfinishedError{Volume: v.Name, Node: node, LeftBytes: flushed.DirtyBytes}
	}
	crashpoint.Reach("flush/flushed")
	if err := s.Hosts.Stop(ctx, cachevolume.On(v, node)); err != nil {
		return fmt.Errorf("stop volume %s on node %s after it was written back: %w", v.Name, node, err)
	}
	crashpoint.Reach("flush/stopped")
	return nil
}

// stillDirty logs how much is left to write back. The answer does not say so: Kubernetes makes an Event of each
// different text, and this number is another one at each try.
func (s *Steps) stillDirty(ctx context.Context, v *v1alpha1.CacheVolume, node string, dirtyBytes int64) {
	s.Log.InfoContext(ctx, "written back in part", "volume", v.Name, "node", node, "dirtyBytes", dirtyBytes)
}

// flushTime returns how long a flush may take so that the call can still be answered.
func flushTime(ctx context.Context, longest time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(longest, time.Until(deadline)-flushMargin)
	}
	return longest
}

// again reads a volume again after a long call, because csi-node writes its status too. It fails
// with ErrBusy if the attachment is not the same any more.
func (s *Steps) again(ctx context.Context, v *v1alpha1.CacheVolume) error {
	now, err := s.Volume(ctx, v.Name)
	if err != nil {
		return err
	}
	if now.Status.AttachedNode != v.Status.AttachedNode || now.Status.Epoch != v.Status.Epoch {
		return fmt.Errorf("volume %s was given to node %q in epoch %d meanwhile: %w",
			v.Name, now.Status.AttachedNode, now.Status.Epoch, ErrBusy)
	}
	*v = *now
	return nil
}

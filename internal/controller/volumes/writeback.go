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
	// flushLongest bounds a flush if the caller sets no deadline.
	flushLongest = time.Minute
	// flushMargin is the part of a call's time that is kept for stopping the device and for the
	// answer.
	flushMargin = 5 * time.Second
)

// WriteBack makes a node with a current copy write back what is dirty, so that the truth is in
// Ceph. That node gets the volume as any other would, by compare-and-swap and with an epoch of its
// own. So no other node can have it meanwhile, and after a crash the record says what to go on
// with.
func (s *Steps) WriteBack(ctx context.Context, v *v1alpha1.CacheVolume, current []string) error {
	if v.Status.FlushAttached() {
		return s.FinishFlush(ctx, v)
	}
	reports := s.Reports(ctx, v, v.Spec.Replicas)
	// The flush gets an epoch of its own. Afterwards nothing could tell that the record was set back.
	if err := s.newest(ctx, v, reports); err != nil {
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
		if err = s.finishFlush(ctx, v); err == nil || v.Status.FlushAttached() {
			return err
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}

// FinishFlush goes on with a flush from wherever it was, and ends its attachment once everything is
// in Ceph. The attachment also ends if the node cannot flush, so that another one can try. It stays
// if only time is missing. A record that was set back to during a flush is refused.
func (s *Steps) FinishFlush(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.newest(ctx, v, s.Reports(ctx, v, s.ReadyReplicas(v))); err != nil {
		return err
	}
	return s.finishFlush(ctx, v)
}

func (s *Steps) finishFlush(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if err := s.Connectable(ctx, v); err != nil {
		return err
	}
	node := v.Status.AttachedNode
	failure := s.flush(ctx, v, node)
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
	if failure != nil && err != nil {
		return fmt.Errorf("%w; and it cannot be taken from node %s: %w", failure, node, err)
	}
	if failure == nil && err == nil && !authority.InCeph(v) {
		return fmt.Errorf("node %s has written back volume %s, and does not report a clean, current copy: %w", node, v.Name, ErrUnavailable)
	}
	return errors.Join(failure, err)
}

// flush connects the volume on a node, writes back its cache and stops the device.
func (s *Steps) flush(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	if _, err := s.abandon(ctx, v, node); err != nil {
		return err
	}
	err := s.Hosts.DevConnect(ctx, node, cachevolume.ConnectRequest(v))
	if err != nil {
		return fmt.Errorf("connect volume %s on node %s to write it back: %w", v.Name, node, err)
	}
	crashpoint.Reach("flush/connected")
	longest := flushTime(ctx)
	if longest < time.Second {
		return fmt.Errorf("volume %s is connected on node %s, and the call's time is up before it is written back; "+
			"the repeated call goes on: %w", v.Name, node, ErrBusy)
	}
	flushed, err := s.Hosts.Flush(ctx, node, cachevolume.Ref(v), longest)
	if err != nil {
		return fmt.Errorf("write back volume %s on node %s: %w", v.Name, node, err)
	}
	if !flushed.Clean {
		return fmt.Errorf("node %s writes back volume %s, %d bytes (%s) are left; the repeated call goes on: %w",
			node, v.Name, flushed.DirtyBytes, v1alpha1.HumanBytes(flushed.DirtyBytes), ErrBusy)
	}
	crashpoint.Reach("flush/flushed")
	if err := s.Hosts.Stop(ctx, node, cachevolume.Ref(v)); err != nil {
		return fmt.Errorf("stop volume %s on node %s after it was written back: %w", v.Name, node, err)
	}
	crashpoint.Reach("flush/stopped")
	return nil
}

// flushTime returns how long a flush may take so that the call can still be answered.
func flushTime(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(flushLongest, time.Until(deadline)-flushMargin)
	}
	return flushLongest
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

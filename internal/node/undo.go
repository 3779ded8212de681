package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// undoTime bounds stopping the device after a failed NodeStageVolume. It applies even if the call's
// own time is up.
const undoTime = 30 * time.Second

// errInUse: the device is mounted somewhere, so an earlier call has staged it.
var errInUse = errors.New("it is mounted")

// undone takes back what a failed NodeStageVolume has made if the kubelet takes the error as final, because it then
// calls no NodeUnstageVolume. If that cannot be done now, the error that it returns is not final.
func undone(ctx context.Context, cause error, what string, undo func(context.Context) error) error {
	if !IsFinal(Code(cause)) {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	if err := undo(ctx); err != nil {
		return fmt.Errorf("%w; %s %w: %w", cause, what, ErrUndone, err)
	}
	return cause
}

// undo stops the device again after a final error. What an earlier call has staged stays.
func (s *Service) undo(ctx context.Context, v *v1alpha1.CacheVolume, cause error) error {
	return undone(ctx, cause, "the connected device", func(ctx context.Context) error {
		if err := s.giveBack(ctx, v, v.Status.Epoch); !errors.Is(err, errInUse) {
			return err
		}
		return nil
	})
}

// undoEarlier is undo for a call that fails before it has connected the device. An earlier call of this
// attachment may have connected it, and ended with an error that was not final. So the device stayed for
// this call. The answer to a call that has staged it may have been lost, too: so the error is not
// final either while the device is in use.
func (s *Service) undoEarlier(ctx context.Context, r stageRequest, cause error) error {
	return undone(ctx, cause, "what an earlier call may have connected", func(ctx context.Context) error {
		v, err := s.Kube.Volume(ctx, r.volume)
		switch {
		case errors.Is(err, kube.ErrNotFound):
			return nil // its finalizer keeps the object until replicas and image are gone
		case err != nil:
			return err
		}
		return s.giveBack(ctx, v, r.epoch)
	})
}

// giveBack writes the cache back and stops the device that an attachment has here. It succeeds if there is
// none, and leaves one of another attachment. It returns errInUse if the device is mounted anywhere.
func (s *Service) giveBack(ctx context.Context, v *v1alpha1.CacheVolume, epoch int64) error {
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return fmt.Errorf("status of volume %s: %w", v.Name, err)
	}
	switch {
	case status.Connecting:
		return fmt.Errorf("%w: escached still connects volume %s; the next try finds out what has come of it", ErrBusy, v.Name)
	case !authority.HasDevice(*status), status.Epoch > epoch:
		return nil
	case !health.IsConnected(*status): // an image that was mapped, and no device was made; the epoch may not be stored yet
		return s.stop(ctx, v, epoch)
	case status.Epoch < epoch:
		return nil
	case authority.IsSuperseded(v, s.Node, status.Epoch), authority.IsTaken(v, s.Node, status.ClientAddress):
		return fmt.Errorf("%w: volume %s was taken from this node, so its cache is not written back; NodeUnstageVolume gives the device up",
			ErrRefused, v.Name)
	case status.IOSuspended:
		return fmt.Errorf("%w: volume %s has lost its other replica, which is not yet on record as outdated", ErrFrozen, v.Name)
	}
	if number, err := s.Devices.Number(status.Device); err == nil { // a device that is not here is not mounted here
		table, err := s.Mounter.Table()
		if err != nil {
			return err
		}
		if at := otherPaths(mounts.Of(table, number), ""); len(at) > 0 {
			return fmt.Errorf("%w at %s", errInUse, strings.Join(at, ", "))
		}
	}
	if status.Uncached || status.Device == "" {
		return s.stop(ctx, v, epoch) // there is nothing to write back, or no device to write it back through
	}
	return s.flushAndStop(ctx, v, epoch, undoTime/2)
}

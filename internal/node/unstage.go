package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// unstageTime bounds an unstage if the caller sets no deadline; the kubelet's is two minutes.
const unstageTime = 110 * time.Second

// stopTime is the part of a call's time that is left for stopping the device and answering, after
// the flush.
const stopTime = 15 * time.Second

func (s *Service) unstage(ctx context.Context, volume, path string) error {
	path = filepath.Clean(path)
	ctx, cancel := context.WithTimeout(ctx, unstageTime)
	defer cancel()
	// All checks come before the first change.
	v, err := s.Kube.Volume(ctx, volume)
	if err != nil && !errors.Is(err, kube.ErrNotFound) {
		return err
	}
	if v == nil {
		readOnly, err := s.Kube.ReadOnlyVolume(ctx, volume)
		if err == nil {
			return s.unstageReadOnly(ctx, readOnly, path)
		}
		if !errors.Is(err, kube.ErrNotFound) {
			return err
		}
	}
	var status *escache.VolumeStatus
	if v != nil {
		if status, err = s.Cache.VolumeStatus(ctx, cachevolume.Ref(v)); err != nil {
			return fmt.Errorf("status of volume %s: %w", volume, err)
		}
		if health.IsConnected(*status) && authority.IsSuperseded(v, s.Node, status.Epoch) {
			return s.abandon(ctx, v, path, status)
		}
		if status.IOSuspended {
			return fmt.Errorf("%w: volume %s has lost its other replica, which is not yet on record as outdated; "+
				"unmounting would hang. I/O goes on when the replica is back or the Kubernetes API answers", ErrFrozen, volume)
		}
		if authority.IsTaken(v, s.Node, status.ClientAddress) {
			return s.abandon(ctx, v, path, status)
		}
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	if err := s.checkUnused(volume, path, table, status); err != nil {
		return err
	}
	if err := s.unmountAll(ctx, volume, path, table); err != nil {
		return err
	}
	crashpoint.Reach("node_unstage/unmounted")
	if v == nil {
		s.warnOfDevice(ctx, volume, path, table)
		return nil
	}
	return s.disconnect(ctx, v, *status)
}

// warnOfDevice is for a volume whose record is gone and that was mounted here: the volume was deleted after this host
// had been cut off. escached gives a device up only by the record, so it stays. Nothing the kubelet could repeat helps.
func (s *Service) warnOfDevice(ctx context.Context, volume, path string, table []mounts.Entry) {
	if at := mounts.At(table, path); at != nil && !s.Devices.Dead(at.Device) {
		s.Logger.WarnContext(ctx, "unmounted a volume that has no record any more; its device stays until this host is booted",
			"volume", volume, "path", path)
	}
}

// checkUnused refuses while the volume is published to a pod.
func (s *Service) checkUnused(volume, path string, table []mounts.Entry, status *escache.VolumeStatus) error {
	var users []string
	if at := mounts.At(table, path); at != nil && !s.Devices.Dead(at.Device) {
		users = otherPaths(mounts.Of(table, at.Device), path)
	}
	if status != nil && deviceOf(status) != "" {
		if number, err := s.Devices.Number(status.Device); err == nil {
			users = append(users, otherPaths(mounts.Of(table, number), path)...)
		}
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: volume %s is still published at %s; call NodeUnpublishVolume first", ErrRefused, volume,
			strings.Join(users, ", "))
	}
	return nil
}

// unmountAll unmounts everything at path, which may have several mounts.
func (s *Service) unmountAll(ctx context.Context, volume, path string, table []mounts.Entry) error {
	for _, at := range slices.Backward(table) {
		if at.Path != path {
			continue
		}
		if !at.Node && s.Devices.Dead(at.Device) {
			if err := s.removeDead(ctx, volume, path); err != nil {
				return err
			}
			continue
		}
		if err := s.Mounter.Unmount(ctx, volume, path); err != nil {
			return err
		}
	}
	return nil
}

// disconnect flushes the cache and stops the device. If there is no device, as after a reboot or on a
// replica that is only Primary, but this node's cache may hold data that is not in Ceph, it connects the device once
// more to flush it. So it does if the device's Ceph client is fenced: the volume was taken from this node by force
// and given back. Without a cache there is nothing to flush. A host without memory or disk for that leaves it to another one.
//
// It always asks escached to stop, even if there is no device: perhaps a call of an earlier csi-node
// still connects the volume. Then escached is busy with that, and the next try stops the device.
func (s *Service) disconnect(ctx context.Context, v *v1alpha1.CacheVolume, status escache.VolumeStatus) error {
	epoch, connected := status.Epoch, deviceOf(&status) != ""
	if status.Uncached || !connected && !mustWriteBack(v, s.Node, status) {
		return s.stop(ctx, v, epoch)
	}
	if !connected || authority.IsFenced(v, status.ClientAddress) {
		v, err := s.askForComparison(ctx, v, func(ctx context.Context) (*v1alpha1.CacheVolume, error) {
			return s.sameAttachment(ctx, v)
		})
		if err != nil {
			return err
		}
		_, err = s.Cache.DevConnect(ctx, cachevolume.ConnectRequest(v))
		if !connected && s.mayLeaveDirty(v, status, err) {
			s.Logger.WarnContext(ctx, "unstaging a volume that is not written back: another host has all that is here", "volume", v.Name,
				"error", err)
			return s.stop(ctx, v, epoch)
		}
		if err != nil {
			return fmt.Errorf("connect the cache of volume %s to write it back: %w", v.Name, err)
		}
		epoch = v.Status.Epoch
	}
	deadline, _ := ctx.Deadline()
	return s.flushAndStop(ctx, v, epoch, max(time.Until(deadline)-stopTime, time.Second))
}

// mayLeaveDirty reports whether this host lacks the memory or the disk to write a volume back, and another one has all that
// is here. Nothing is dropped here either, and the record goes on to say that the truth is in the caches.
func (s *Service) mayLeaveDirty(v *v1alpha1.CacheVolume, status escache.VolumeStatus, connect error) bool {
	cannot := answers(connect, escache.CodeNoRoom) || connect != nil && status.DiskState.Lost()
	return cannot &&
		slices.ContainsFunc(authority.Current(v), func(node string) bool { return node != s.Node })
}

// sameAttachment reads the record again, and fails if the attachment has ended.
func (s *Service) sameAttachment(ctx context.Context, v *v1alpha1.CacheVolume) (*v1alpha1.CacheVolume, error) {
	now, err := s.Kube.Volume(ctx, v.Name)
	if err == nil && (now.Status.AttachedNode != v.Status.AttachedNode || now.Status.Epoch != v.Status.Epoch) {
		err = fmt.Errorf("the attachment of volume %s has ended: %w", v.Name, kube.ErrConflict)
	}
	return now, err
}

// abandon unstages a volume that another node took over, or that was taken from this node by force.
// The peer or the new holder has all that this cache still holds. Before escached gives the device up, it reads the
// record itself.
func (s *Service) abandon(ctx context.Context, v *v1alpha1.CacheVolume, path string, status *escache.VolumeStatus) error {
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	if err := s.checkUnused(v.Name, path, table, status); err != nil {
		return err
	}
	s.Logger.WarnContext(ctx, "abandoning the device of a volume that was taken over", "volume", v.Name, "epoch", status.Epoch,
		"takenOverBy", v.Status.AttachedNode, "takenOverIn", v.Status.Epoch)
	// A mounted device stays for now, but all its I/O fails, so unmounting does not hang.
	epoch := authority.GivenUpIn(v, status.Epoch)
	err = s.Cache.Abandon(ctx, cachevolume.Ref(v), epoch)
	open := answers(err, escache.CodeDeviceOpen)
	if err != nil && !open {
		return fmt.Errorf("abandon the device of volume %s, which %q took over: %w", v.Name, v.Status.AttachedNode, err)
	}
	for mounts.At(table, path) != nil {
		if err := s.removeDead(ctx, v.Name, path); err != nil {
			return err
		}
		if table, err = s.Mounter.Table(); err != nil {
			return err
		}
	}
	if !open {
		return nil
	}
	if err := s.Cache.Abandon(ctx, cachevolume.Ref(v), epoch); err != nil {
		return fmt.Errorf("abandon the device of volume %s after unmounting it: %w", v.Name, err)
	}
	return nil
}

// mustWriteBack reports whether a replica that is not connected may have to be written back.
func mustWriteBack(v *v1alpha1.CacheVolume, node string, status escache.VolumeStatus) bool {
	dirty := status.DirtyBytes == nil || *status.DirtyBytes > 0
	return status.State != escache.StateAbsent && dirty && mayHoldTruth(v, node)
}

// mayHoldTruth reports whether acknowledged writes may be in this node's replica and not in Ceph.
func mayHoldTruth(v *v1alpha1.CacheVolume, node string) bool {
	return v.Status.AttachedNode == node && v.Status.Authority == v1alpha1.AuthorityCache && !v.Status.IsOutdated(node)
}

// flushAndStop flushes for at most flushTime and then stops the device of this epoch.
func (s *Service) flushAndStop(ctx context.Context, v *v1alpha1.CacheVolume, epoch int64, flushTime time.Duration) error {
	flushed, err := s.Cache.Flush(ctx, escache.FlushRequest{
		VolumeRef: cachevolume.Ref(v), Epoch: epoch, TimeoutSeconds: max(int(flushTime/time.Second), 1),
	})
	if err != nil { // also if the device is gone since: the next try finds out what is dirty
		return fmt.Errorf("flush volume %s: %w", v.Name, err)
	}
	if !flushed.Clean {
		// Kubernetes makes an Event of each different text, so this number is only in the log.
		s.Logger.InfoContext(ctx, "written back in part", "volume", v.Name, "dirtyBytes", flushed.DirtyBytes)
		return fmt.Errorf("%w: volume %s is not yet in Ceph; the next try continues", ErrNotClean, v.Name)
	}
	crashpoint.Reach("node_unstage/flushed")
	return s.stop(ctx, v, epoch)
}

// stop stops the device. It succeeds if there is none, or no replica. The epoch is the one in which escached
// was when the caller looked, not that on record: a record that was set back must not keep a pod from ending.
func (s *Service) stop(ctx context.Context, v *v1alpha1.CacheVolume, epoch int64) error {
	err := s.Cache.Stop(ctx, escache.StopRequest{VolumeRef: cachevolume.Ref(v), Epoch: epoch})
	if err != nil && !answers(err, escache.CodeNotFound, escache.CodeNotConnected) {
		return fmt.Errorf("stop volume %s: %w", v.Name, err)
	}
	crashpoint.Reach("node_unstage/stopped")
	return nil
}

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// publishTime bounds publish and unpublish.
const publishTime = time.Minute

func (s *Service) publish(ctx context.Context, r publishRequest) error {
	if r.many {
		return s.publishReadOnly(ctx, r)
	}
	v, err := s.Kube.Volume(ctx, r.volume)
	if err != nil {
		return err
	}
	if err := s.stageAnew(ctx, r, v); err != nil {
		return err
	}
	return s.bind(ctx, r, func(ctx context.Context) (string, error) {
		status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
		if err != nil {
			return "", fmt.Errorf("status of volume %s: %w", r.volume, err)
		}
		if deviceOf(status) == "" {
			return "", fmt.Errorf("%w: volume %s is not connected here; call NodeStageVolume first", ErrRefused, r.volume)
		}
		return status.Device, nil
	})
}

// bind binds a staged volume to a path. deviceOf returns the device of a block volume.
func (s *Service) bind(ctx context.Context, r publishRequest, deviceOf func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if err := checkDirectory("the target path's parent", filepath.Dir(r.target)); err != nil {
		return err
	}
	source, device, table, err := s.publishSource(ctx, r, deviceOf)
	if err != nil {
		return err
	}
	if at := mounts.At(table, r.target); at != nil && isWritableByMistake(r, device, *at) {
		if table, err = s.unmountWritable(ctx, r); err != nil {
			return err
		}
	}
	if at := mounts.At(table, r.target); at != nil {
		return checkPublished(r, device, *at)
	}
	users := otherPaths(mounts.Of(table, device), r.staging)
	if r.single && len(users) > 0 {
		return fmt.Errorf("%w: volume %s allows one writer and is published at %s", ErrRefused, r.volume, strings.Join(users, ", "))
	}
	created, err := makeTarget(r)
	if err != nil {
		return err
	}
	if err := s.Mounter.Bind(ctx, r.volume, source, r.target, r.readOnly); err != nil {
		if created {
			err = errors.Join(err, os.Remove(r.target))
		}
		return fmt.Errorf("publish volume %s at %s: %w", r.volume, r.target, err)
	}
	return nil
}

// stageAnew stages a volume again that was taken from this node by force and given back. If the
// kubelet did not run meanwhile, it takes the volume for staged and only publishes it to the next pod.
// But the device's Ceph client is fenced, so all its I/O with Ceph fails. If an earlier try has failed halfway, that device
// is gone, and this one goes on.
func (s *Service) stageAnew(ctx context.Context, r publishRequest, v *v1alpha1.CacheVolume) error {
	if v.Status.AttachedNode != s.Node {
		return nil
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	at := mounts.At(table, r.staging)
	mounted := at != nil && !s.Devices.Dead(at.Device)
	if len(v.Status.Fenced) == 0 && mounted {
		return nil
	}
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return fmt.Errorf("status of volume %s: %w", r.volume, err)
	}
	fenced := authority.IsFenced(v, status.ClientAddress)
	// A device whose client is not on record may not be used yet.
	staged := mounted || r.block && deviceOf(status) != "" && status.ClientAddress == v.Status.ClientAddress
	_, known := r.stage.GetPublishContext()[v1alpha1.PublishContextEpoch]
	if !fenced && (staged || !known) {
		return nil
	}
	stage, err := parseStage(r.stage)
	if err != nil {
		return err
	}
	if fenced {
		if err := s.checkUnused(r.volume, r.staging, table, status); err != nil {
			return err
		}
	}
	s.Logger.WarnContext(ctx, "staging a volume again that the kubelet only publishes", "volume", r.volume, "client", status.ClientAddress,
		"fenced", fenced)
	if err := s.unmountAll(ctx, r.volume, r.staging, table); err != nil {
		return err
	}
	return s.stage(ctx, stage)
}

// publishSource returns the path to bind to the target: the staged filesystem, or the device node
// of a block volume.
func (s *Service) publishSource(
	ctx context.Context, r publishRequest, deviceOf func(context.Context) (string, error),
) (source string, device blockdev.Number, table []mounts.Entry, err error) {
	if table, err = s.Mounter.Table(); err != nil {
		return "", device, nil, err
	}
	if !r.block {
		at := mounts.At(table, r.staging)
		if at == nil {
			return "", device, nil, fmt.Errorf("%w: volume %s is not mounted at %s; call NodeStageVolume first",
				ErrRefused, r.volume, r.staging)
		}
		if s.Devices.Dead(at.Device) {
			return "", device, nil, fmt.Errorf("%w: volume %s is mounted at %s from a device that is gone; it must be staged again",
				ErrRefused, r.volume, r.staging)
		}
		if at.FSType != r.fsType {
			return "", device, nil, fmt.Errorf("%w: volume %s is staged with %s, and %s is wanted",
				ErrRefused, r.volume, at.FSType, r.fsType)
		}
		if at.ShutDown() {
			return "", device, nil, fmt.Errorf("%w: the filesystem of volume %s has shut itself down after an error; "+
				"it must be staged again", ErrRefused, r.volume)
		}
		if at.FilesystemReadOnly && !r.readOnly {
			return "", device, nil, fmt.Errorf("%w: the filesystem of volume %s is read-only, and writing is wanted; "+
				"it must be staged again", ErrRefused, r.volume)
		}
		return r.staging, at.Device, table, nil
	}
	if at := mounts.At(table, r.staging); at != nil {
		return "", device, nil, fmt.Errorf("%w: volume %s is staged as a filesystem, and a block volume is wanted", ErrRefused, r.volume)
	}
	if source, err = deviceOf(ctx); err != nil {
		return "", device, nil, err
	}
	if device, err = s.Devices.Number(source); err != nil {
		return "", device, nil, fmt.Errorf("%w: device of volume %s: %w", ErrUnavailable, r.volume, err)
	}
	return source, device, table, nil
}

// checkPublished compares what is at the target with what is wanted there.
func checkPublished(r publishRequest, device blockdev.Number, at mounts.Entry) error {
	switch {
	case at.Device != device:
		return fmt.Errorf("%w: another device (%s) is mounted at %s; volume %s is %s", ErrIncompatible, at.Device, r.target,
			r.volume, device)
	case at.Node != r.block:
		return fmt.Errorf("%w: volume %s is published at %s with the other access type", ErrIncompatible, r.volume, r.target)
	case at.ReadOnly != r.readOnly:
		return fmt.Errorf("%w: volume %s is published at %s with read-only=%v, and read-only=%v is wanted",
			ErrIncompatible, r.volume, r.target, at.ReadOnly, r.readOnly)
	default:
		return nil
	}
}

// isWritableByMistake reports whether this volume is at the target and writable, and read-only is wanted. Earlier versions bound
// a volume first and then made that mount read-only. If csi-node was killed between the two, no pod runs there. If not, the
// mount was read-only only in the mount namespace of that csi-node. The next one sees it as the host does: writable. A pod
// may run there.
func isWritableByMistake(r publishRequest, device blockdev.Number, at mounts.Entry) bool {
	return at.Device == device && at.Node == r.block && !at.ReadOnly && r.readOnly
}

// unmountWritable unmounts the target, so that it can be bound read-only. A pod that runs there goes on: its containers have
// mounts of their own. The error is not final, or the kubelet would forget the mount and never call NodeUnpublishVolume.
func (s *Service) unmountWritable(ctx context.Context, r publishRequest) ([]mounts.Entry, error) {
	s.Logger.WarnContext(ctx, "publishing a volume again: its mount is writable, and read-only is wanted",
		"volume", r.volume, "target", r.target)
	if err := s.Mounter.Unmount(ctx, r.volume, r.target); err != nil {
		return nil, fmt.Errorf("%w: volume %s is writable at %s, and read-only is wanted: %w", ErrUnavailable, r.volume, r.target, err)
	}
	return s.Mounter.Table()
}

// makeTarget creates the mount point: a directory, or an empty file for a device node. It follows
// no symbolic link.
func makeTarget(r publishRequest) (created bool, err error) {
	info, err := os.Lstat(r.target)
	switch {
	case err == nil && info.Mode()&os.ModeSymlink != 0:
		return false, fmt.Errorf("%w: target path %s is a symbolic link; the driver does not mount through one", ErrRefused, r.target)
	case err == nil && r.block && !info.Mode().IsRegular(), err == nil && !r.block && !info.IsDir():
		return false, fmt.Errorf("%w: target path %s exists and is of another kind (%s)", ErrRefused, r.target,
			info.Mode().Type())
	case err == nil:
		return false, nil
	case !os.IsNotExist(err):
		return false, fmt.Errorf("%w: target path: %w", ErrRefused, err)
	case r.block:
		file, err := os.OpenFile(r.target, os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return false, fmt.Errorf("%w: target path: %w", ErrRefused, err)
		}
		return true, file.Close()
	default:
		if err := os.Mkdir(r.target, 0o750); err != nil {
			return false, fmt.Errorf("%w: target path: %w", ErrRefused, err)
		}
		return true, nil
	}
}

func (s *Service) unpublish(ctx context.Context, volume, target string) error {
	ctx, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	target = filepath.Clean(target)
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	if mounts.At(table, target) == nil {
		info, err := os.Lstat(target)
		if os.IsNotExist(err) {
			return nil
		}
		if err == nil && info.Mode()&os.ModeSymlink != 0 {
			return fmt.Errorf("%w: target path %s is a symbolic link, which this driver has not created", ErrRefused, target)
		}
	}
	if err := s.unmountAll(ctx, volume, target, table); err != nil {
		return err
	}
	// Remove the mount point only, never its content: files in it are not the driver's.
	if err := os.Remove(target); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("%w: remove target path: %w", ErrRefused, err)
	}
	return nil
}

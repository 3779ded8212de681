package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/crashpoint"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// stageReadOnly maps this node's own image of a read-only volume and mounts it read-only.
//
// The filesystem of a snapshot has a journal to replay. The kernel does that also for a read-only mount,
// if it can write to the device: so the image is mapped for writing. No other node uses it. A block volume
// is handed out as it is, and its image is mapped read-only.
func (s *Service) stageReadOnly(ctx context.Context, r stageRequest) error {
	device, err := s.mapHere(ctx, r.volume, r.block)
	if answers(err, escache.CodeDeviceOpen) {
		if err = s.unmountEarlier(ctx, r, err); err == nil {
			device, err = s.mapHere(ctx, r.volume, r.block)
		}
	}
	if err != nil {
		return s.undoEarlierMap(ctx, r, err)
	}
	crashpoint.Reach("node_stage/read_only_mapped")
	if err := s.mountReadOnly(ctx, r, device); err != nil {
		return s.undoMap(ctx, r.volume, device, err)
	}
	return nil
}

// unmountEarlier unmounts the image that this node had before. Kubernetes had given the node up, so that image is deleted
// and its client fenced, and this node has got another image since. escached unmaps the old one when nobody has it open.
func (s *Service) unmountEarlier(ctx context.Context, r stageRequest, cause error) error {
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	at := mounts.At(table, r.path)
	if at == nil {
		return cause
	}
	if users := otherPaths(mounts.Of(table, at.Device), r.path); len(users) > 0 {
		return fmt.Errorf("%w; this node has got another image of it since, and pods still use the old one at %s; delete them, "+
			"then it is staged again", cause, strings.Join(users, ", "))
	}
	s.Logger.WarnContext(ctx, "unmounting the old image of a read-only volume that this node has got again",
		"volume", r.volume, "path", r.path)
	return s.unmountAll(ctx, r.volume, r.path, table)
}

// publishReadOnly publishes a read-only volume. It stages a filesystem first, which does nothing if it is staged. This node may have
// lost the volume and got it again with another image, and a kubelet that did not restart meanwhile only publishes.
func (s *Service) publishReadOnly(ctx context.Context, r publishRequest) error {
	if !r.block {
		stage, err := parseStage(r.stage)
		if err != nil {
			return err
		}
		if err := s.stage(ctx, stage); err != nil {
			return err
		}
	}
	return s.bind(ctx, r, func(ctx context.Context) (string, error) { return s.mapHere(ctx, r.volume, r.block) })
}

// mapHere maps this node's image, unless it is mapped already, and returns the device.
func (s *Service) mapHere(ctx context.Context, volume string, readOnly bool) (device string, err error) {
	v, err := s.Kube.ReadOnlyVolume(ctx, volume)
	if err != nil {
		return "", err
	}
	has := v.CopyOn(s.Node)
	if has == nil || has.ImageID == "" {
		return "", fmt.Errorf("%w: volume %s is not attached to node %s", ErrRefused, volume, s.Node)
	}
	mapped, err := s.Cache.Map(ctx, escache.MapRequest{VolumeRef: s.refOf(v), ImageID: has.ImageID, ReadOnly: readOnly})
	if answers(err, escache.CodeUnknownPath) {
		return "", fmt.Errorf("%w: escached on node %s is older than csi-node and maps no image without a cache: upgrade it",
			ErrRefused, s.Node)
	}
	if err != nil {
		return "", fmt.Errorf("map the image of volume %s: %w", volume, err)
	}
	return mapped.Device, nil
}

// refOf returns this node's image of a read-only volume.
func (s *Service) refOf(v *v1alpha1.ReadOnlyVolume) escache.VolumeRef {
	return escache.VolumeRef{Pool: v.Spec.Pool, Image: v.ImageOn(s.Node)}
}

func (s *Service) mountReadOnly(ctx context.Context, r stageRequest, device string) error {
	number, err := s.Devices.Number(device)
	if err != nil {
		return fmt.Errorf("%w: escached says that volume %s is at %s: %w; check that the host's /dev is mounted into this pod",
			ErrUnavailable, r.volume, device, err)
	}
	staged, err := s.prepareStaging(ctx, r, number)
	if err != nil || staged || r.block {
		return err
	}
	content, err := s.Filesystems.Probe(ctx, r.volume, device)
	if err != nil {
		return err
	}
	action, err := fs.Decide(content, r.fsType, "", nil)
	if err != nil {
		return fmt.Errorf("volume %s: %w", r.volume, err)
	}
	if action != fs.Mount {
		return fmt.Errorf("%w: the snapshot of volume %s was taken before there was a filesystem; take another one", ErrRefused, r.volume)
	}
	return s.mountDevice(ctx, r, device, false, content)
}

// undoMap unmaps the image again after a final error. What an earlier call has staged stays.
func (s *Service) undoMap(ctx context.Context, volume, device string, cause error) error {
	return undone(ctx, cause, "the mapped image", func(ctx context.Context) error {
		table, err := s.Mounter.Table()
		if err != nil {
			return err
		}
		if number, missing := s.Devices.Number(device); missing == nil && len(mounts.Of(table, number)) > 0 {
			return nil
		}
		v, err := s.Kube.ReadOnlyVolume(ctx, volume)
		if err != nil {
			return err
		}
		return s.Cache.Unmap(ctx, s.refOf(v))
	})
}

// undoEarlierMap is undoMap for a call that fails before it has mapped the image. An earlier call may have
// mapped it, and ended with an error that was not final. Nobody says here which device it has, so escached
// has to refuse if a pod uses it.
func (s *Service) undoEarlierMap(ctx context.Context, r stageRequest, cause error) error {
	return undone(ctx, cause, "what an earlier call may have mapped", func(ctx context.Context) error {
		v, err := s.Kube.ReadOnlyVolume(ctx, r.volume)
		switch {
		case errors.Is(err, kube.ErrNotFound):
			return nil // its finalizer keeps the object until all images are gone
		case err != nil:
			return err
		}
		return s.unmapUnused(ctx, v, r.path)
	})
}

func (s *Service) unmapUnused(ctx context.Context, v *v1alpha1.ReadOnlyVolume, path string) error {
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	if mounts.At(table, path) != nil {
		return fmt.Errorf("%w at %s", errInUse, path)
	}
	err = s.Cache.Unmap(ctx, s.refOf(v))
	if answers(err, escache.CodeUnknownPath) {
		return nil // an older escached, which maps no such image either
	}
	return err
}

// unstageReadOnly unmounts a read-only volume and unmaps its image. The image's name follows from the
// record, so this also works if the record does not name this node any more.
func (s *Service) unstageReadOnly(ctx context.Context, v *v1alpha1.ReadOnlyVolume, path string) error {
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	if err := s.checkUnused(v.Name, path, table, nil); err != nil {
		return err
	}
	if err := s.unmountAll(ctx, v.Name, path, table); err != nil {
		return err
	}
	crashpoint.Reach("node_unstage/read_only_unmounted")
	if err := s.Cache.Unmap(ctx, s.refOf(v)); err != nil {
		return fmt.Errorf("unmap the image of volume %s: %w", v.Name, err)
	}
	return nil
}

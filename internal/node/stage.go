package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/fstype"
	"github.com/escache/escache-csi/internal/node/blockdev"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/traces"
)

func (s *Service) stage(ctx context.Context, r stageRequest) error {
	if err := s.checkStaging(r.path); err != nil {
		return err
	}
	if r.many {
		return s.stageReadOnly(ctx, r)
	}
	read := func(ctx context.Context) (*v1alpha1.CacheVolume, error) { return s.attached(ctx, r.volume, r.epoch) }
	v, err := read(ctx)
	if err != nil {
		return s.undoEarlier(ctx, r, err)
	}
	if v, err = s.compared(ctx, v, read); err != nil {
		return s.undoEarlier(ctx, r, err)
	}
	crashpoint.Reach("node_stage/compared")
	connected, err := s.Cache.DevConnect(ctx, cachevolume.ConnectRequest(v))
	if err != nil {
		return s.undoEarlier(ctx, r, fmt.Errorf("connect the cache of volume %s: %w", r.volume, err))
	}
	crashpoint.Reach("node_stage/connected")
	if s.Connected != nil {
		s.Connected()
	}
	if v, err = s.recordClientAddress(ctx, v, connected.ClientAddress); err != nil {
		return s.undo(ctx, v, err)
	}
	if err := s.mayWrite(ctx, v); err != nil {
		return s.undo(ctx, v, err)
	}
	if err := s.stageDevice(ctx, r, v, connected); err != nil {
		return s.undo(ctx, v, err)
	}
	return nil
}

// attached reads the CacheVolume, uncached, and refuses unless this node may write in this
// attachment.
func (s *Service) attached(ctx context.Context, volume string, epoch int64) (_ *v1alpha1.CacheVolume, err error) {
	ctx, step := traces.Begin(ctx, "read the record")
	defer step.Done(&err)
	v, err := s.Kube.Volume(ctx, volume)
	if err != nil {
		return nil, err
	}
	switch err := authority.MayStage(v, s.Node, epoch); {
	case errors.Is(err, authority.ErrOutdated):
		return s.clearOutdated(ctx, v)
	case err != nil:
		return nil, err
	}
	return v, nil
}

// clearOutdated removes this node from the list of outdated nodes if its copy has become current
// since: its disk failed while the volume was attached here, and was back after a reboot. The
// record was read before the copies are checked, so a change of the record in between makes the
// patch fail. While the other node is Primary, it may have a permit to go on without this one.
func (s *Service) clearOutdated(ctx context.Context, v *v1alpha1.CacheVolume) (*v1alpha1.CacheVolume, error) {
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return nil, err
	}
	current := slices.ContainsFunc(status.Peers, func(p escache.Peer) bool {
		return !v.Status.IsOutdated(p.Name) && v.Spec.HasReplica(p.Name) && p.Role != escache.RolePrimary &&
			health.IsCurrent(*status, p.Name)
	})
	if !current {
		return nil, fmt.Errorf("%w: the replica of volume %s on this node is on record as outdated, and the copies on %s are not in sync",
			ErrRefused, v.Name, strings.Join(v.Spec.Replicas, " and "))
	}
	return s.Kube.PatchStatus(ctx, v, map[string]any{"outdated": v.Status.OutdatedWithout(s.Node)})
}

// stageDevice mounts a connected device at the staging path, after making a filesystem on it if it
// is blank.
func (s *Service) stageDevice(ctx context.Context, r stageRequest, v *v1alpha1.CacheVolume, c *escache.ConnectResponse) error {
	number, err := s.Devices.Number(c.Device)
	if err != nil {
		return fmt.Errorf("%w: escached says that volume %s is at %s: %w; check that the host's /dev is mounted into this pod",
			ErrUnavailable, r.volume, c.Device, err)
	}
	staged, err := s.prepareStaging(ctx, r, number)
	if err != nil || r.block {
		return err
	}
	if staged {
		return s.growStaged(ctx, r, v, c.Device, number)
	}
	content, err := s.Filesystems.Probe(ctx, r.volume, c.Device)
	if err != nil {
		return err
	}
	record, err := readFilesystemRecord(v)
	if err != nil {
		return err
	}
	action, err := fs.Decide(content, r.fsType, c.ImageID, record)
	if err != nil {
		return fmt.Errorf("volume %s: %w", r.volume, err)
	}
	if action != fs.Mount {
		if a := v.Spec.Adoption; a != nil && !a.FormatIfBlank {
			return fmt.Errorf("%w: volume %s is older than its record, or was made of an existing image, and reads as zeros: there is no "+
				"filesystem, and none is made. Check that it is the right image, and the right copy of the cache. If it is to be "+
				"formatted: "+
				`kubectl patch cachevolume %s --type=merge -p '{"spec":{"adoption":{"formatIfBlank":true}}}'`,
				ErrRefused, r.volume, r.volume)
		}
		if r.readOnly {
			return fmt.Errorf("%w: volume %s has no filesystem yet, and a read-only mount does not create one; mount it writable once",
				ErrRefused, r.volume)
		}
		if err := s.format(ctx, r, v, c, action, record); err != nil {
			return err
		}
	} else if record != nil && record.State == fs.Formatting {
		record.State = fs.Formatted
		if _, err := s.writeFilesystemRecord(ctx, v, *record); err != nil {
			return err
		}
	}
	return s.mountDevice(ctx, r, c.Device, action == fs.Mount && content.Surface.NeedsGrowth(), content)
}

func (s *Service) mountDevice(ctx context.Context, r stageRequest, device string, grow bool, content fs.Content) (err error) {
	ctx, step := traces.Begin(ctx, "mount the device")
	defer step.Done(&err)
	if sb := content.Surface.Superblock; sb != nil && sb.Errors {
		s.Logger.WarnContext(ctx, "the kernel has noted errors in the filesystem; check it",
			"volume", r.volume, "device", device, "type", sb.Type)
	}
	err = s.Mounter.Mount(ctx, r.volume, device, r.path, r.fsType, fstype.MountOptions(r.fsType, r.options, r.readOnly))
	if _, failed := errors.AsType[*command.ExitError](err); failed {
		findings := s.Filesystems.Check(ctx, r.volume, device, r.fsType)
		return fmt.Errorf("%w: volume %s does not mount: %w. %s. The driver repairs nothing: that is an operator's decision",
			ErrRefused, r.volume, err, findings)
	}
	if err != nil {
		return err
	}
	crashpoint.Reach("node_stage/mounted")
	if grow && !r.readOnly {
		s.grow(ctx, r, device)
	}
	return nil
}

// grow grows the filesystem of an image that was restored into a larger volume. One that is too small is usable, and the
// next expansion grows it.
func (s *Service) grow(ctx context.Context, r stageRequest, device string) {
	if err := s.Filesystems.Grow(ctx, r.volume, device, r.path, r.fsType); err != nil {
		s.Logger.WarnContext(ctx, "the filesystem is smaller than its volume", "volume", r.volume, "error", err)
	}
}

// growStaged grows a filesystem that is mounted already: an earlier call may have been cut off between mounting and
// growing. Only one that came with the image, and so has no record, can be too small. If a pod has it, another call
// has succeeded since, and this one does not wait for Ceph.
func (s *Service) growStaged(ctx context.Context, r stageRequest, v *v1alpha1.CacheVolume, device string, number blockdev.Number) error {
	if _, made := v.Annotations[v1alpha1.AnnotationFilesystem]; made || r.readOnly {
		return nil
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	if len(otherPaths(mounts.Of(table, number), r.path)) > 0 {
		return nil
	}
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return fmt.Errorf("status of volume %s: %w", r.volume, err)
	}
	if !status.IOSuspended {
		s.grow(ctx, r, device)
	}
	return nil
}

// format makes a filesystem. It writes the record before and after mkfs: see filesystem.Record.
func (s *Service) format(ctx context.Context, r stageRequest, v *v1alpha1.CacheVolume, c *escache.ConnectResponse, action fs.Action,
	earlier *fs.Record,
) (err error) {
	ctx, step := traces.Begin(ctx, "make a filesystem")
	defer step.Done(&err)
	record := fs.Record{State: fs.Formatting, Type: r.fsType, ImageID: c.ImageID, Node: s.Node, Epoch: r.epoch}
	if earlier != nil {
		record.UUID = earlier.UUID
	} else {
		record.UUID = newUUID()
	}
	v, err = s.writeFilesystemRecord(ctx, v, record)
	if err != nil {
		return err
	}
	crashpoint.Reach("node_stage/record_written")
	started := time.Now()
	if err := s.Filesystems.Make(ctx, r.volume, c.Device, action, record, r.mkfsOptions); err != nil {
		if _, failed := errors.AsType[*command.ExitError](err); failed {
			return fmt.Errorf("%w: no filesystem could be made on volume %s: %w", ErrRefused, r.volume, err)
		}
		return fmt.Errorf("make %s on volume %s: %w", r.fsType, r.volume, err)
	}
	crashpoint.Reach("node_stage/filesystem_made")
	record.State = fs.Formatted
	if _, err := s.writeFilesystemRecord(ctx, v, record); err != nil {
		return err
	}
	crashpoint.Reach("node_stage/record_closed")
	s.Logger.InfoContext(ctx, "made a filesystem", "volume", r.volume, "type", r.fsType, "uuid", record.UUID,
		"resumed", action == fs.Reformat, "duration", time.Since(started))
	return nil
}

func readFilesystemRecord(v *v1alpha1.CacheVolume) (*fs.Record, error) {
	text, ok := v.Annotations[v1alpha1.AnnotationFilesystem]
	if !ok {
		return nil, nil //nolint:nilnil // no record is an answer
	}
	record := &fs.Record{}
	if err := json.Unmarshal([]byte(text), record); err != nil {
		return nil, fmt.Errorf("%w: annotation %s of CacheVolume %s cannot be read (%w); restore it or remove it",
			ErrRefused, v1alpha1.AnnotationFilesystem, v.Name, err)
	}
	return record, nil
}

// maxTries bounds how often a write is repeated because others have changed the CacheVolume.
const maxTries = 5

// writeFilesystemRecord writes the record to the CacheVolume, unless the attachment or the record
// has changed since v was read.
func (s *Service) writeFilesystemRecord(ctx context.Context, v *v1alpha1.CacheVolume, record fs.Record) (*v1alpha1.CacheVolume, error) {
	text, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	before := v.Annotations[v1alpha1.AnnotationFilesystem]
	for range maxTries {
		var changed *v1alpha1.CacheVolume
		changed, err = s.Kube.Annotate(ctx, v, v1alpha1.AnnotationFilesystem, string(text))
		if !errors.Is(err, kube.ErrConflict) {
			return changed, err
		}
		var readErr error
		if v, readErr = s.attached(ctx, v.Name, v.Status.Epoch); readErr != nil {
			return nil, readErr
		}
		if v.Annotations[v1alpha1.AnnotationFilesystem] != before {
			return nil, fmt.Errorf("the record of the filesystem of volume %s: %w", v.Name, kube.ErrConflict)
		}
	}
	return nil, err
}

// deviceOf returns the path of a volume's device, or "" if it is not connected. For an image that is to be mapped without a
// cache, escached also names the device before there is one. Until then the link there may be an old one, to a device of
// which the kernel has given the number to another image.
func deviceOf(status *escache.VolumeStatus) string {
	if !health.IsConnected(*status) {
		return ""
	}
	return status.Device
}

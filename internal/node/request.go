package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/fstype"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
)

// use is how a volume is to be used. It is valid by construction.
type use struct {
	block bool
	// fsType and options are for a mounted volume.
	fsType   string
	options  []string
	readOnly bool
	// single: published at one path only.
	single bool
	// many: many nodes have the volume, and nobody writes to it.
	many bool
}

// parseUse checks a capability and returns the use that it asks for.
func parseUse(c *csi.VolumeCapability) (use, error) {
	if c == nil {
		return use{}, fmt.Errorf("%w: no volume capability", ErrInvalid)
	}
	var u use
	switch mode := c.GetAccessMode().GetMode(); mode { //nolint:exhaustive // the others are for several nodes
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		u.single = true
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
	case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		return use{}, fmt.Errorf("%w: access mode %s: use a mode that may write, and mount it read-only", ErrRefused, mode)
	case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
		u.many, u.readOnly = true, true
	case csi.VolumeCapability_AccessMode_UNKNOWN:
		return use{}, fmt.Errorf("%w: no access mode", ErrInvalid)
	default:
		return use{}, fmt.Errorf("%w: access mode %s: an escache volume can be used on one node at a time", ErrRefused, mode)
	}
	switch access := c.GetAccessType().(type) {
	case *csi.VolumeCapability_Block:
		u.block = true
		return u, nil
	case *csi.VolumeCapability_Mount:
		return parseMount(u, access.Mount)
	default:
		return use{}, fmt.Errorf("%w: access type is neither block nor mount", ErrInvalid)
	}
}

func parseMount(u use, m *csi.VolumeCapability_MountVolume) (use, error) {
	if m.GetVolumeMountGroup() != "" {
		return use{}, fmt.Errorf("%w: volume mount group: ext4 and xfs have no mount option for a group; "+
			"the kubelet sets it (fsGroupPolicy File)", ErrRefused)
	}
	u.fsType, u.options = m.GetFsType(), splitOptions(m.GetMountFlags())
	if u.fsType == "" {
		u.fsType = fs.Ext4
	}
	if err := fstype.Known(u.fsType); err != nil {
		return use{}, err
	}
	u.readOnly = u.readOnly || isOn(u.options, "ro", "rw")
	if !u.many {
		return u, nil
	}
	if isOn(u.options, "rw", "ro") {
		return use{}, fmt.Errorf("%w: the mount option rw for a volume with ReadOnlyMany: it is always mounted read-only; leave it out",
			ErrInvalid)
	}
	for _, skips := range []string{"noload", "norecovery"} {
		if slices.Contains(u.options, skips) {
			return use{}, fmt.Errorf("%w: the mount option %s for a volume with ReadOnlyMany: it skips the journal, and files that were "+
				"synced would be missing; leave it out", ErrInvalid, skips)
		}
	}
	return u, nil
}

type stageRequest struct {
	use

	volume, path string
	epoch        int64
	mkfsOptions  []string
}

func parseStage(r *csi.NodeStageVolumeRequest) (stageRequest, error) {
	if err := checkNames(r.GetVolumeId(), "staging target path", r.GetStagingTargetPath()); err != nil {
		return stageRequest{}, err
	}
	u, err := parseUse(r.GetVolumeCapability())
	if err != nil {
		return stageRequest{}, err
	}
	parsed := stageRequest{use: u, volume: r.GetVolumeId(), path: filepath.Clean(r.GetStagingTargetPath())}
	if u.many {
		return parsed, nil // no attachment comes after another one, and no filesystem is made
	}
	epoch, err := strconv.ParseInt(r.GetPublishContext()[v1alpha1.PublishContextEpoch], 10, 64)
	if err != nil || epoch < 1 {
		return stageRequest{}, fmt.Errorf("%w: publish_context %q is %q, not the epoch that ControllerPublishVolume returned",
			ErrInvalid, v1alpha1.PublishContextEpoch, r.GetPublishContext()[v1alpha1.PublishContextEpoch])
	}
	parsed.epoch = epoch
	if !u.block {
		parsed.mkfsOptions, err = fs.ParseOptions(u.fsType, r.GetVolumeContext()[v1alpha1.VolumeContextMkfsOptions])
	}
	return parsed, err
}

type publishRequest struct {
	use

	volume, staging, target string
	// stage is the call that has staged the volume for this attachment, or should have.
	stage *csi.NodeStageVolumeRequest
}

func parsePublish(r *csi.NodePublishVolumeRequest) (publishRequest, error) {
	if err := checkNames(r.GetVolumeId(), "target path", r.GetTargetPath()); err != nil {
		return publishRequest{}, err
	}
	u, err := parseUse(r.GetVolumeCapability())
	if err != nil {
		return publishRequest{}, err
	}
	if err := checkNames(r.GetVolumeId(), "staging target path", r.GetStagingTargetPath()); err != nil {
		return publishRequest{}, err
	}
	u.readOnly = u.readOnly || r.GetReadonly()
	return publishRequest{
		use: u, volume: r.GetVolumeId(), staging: filepath.Clean(r.GetStagingTargetPath()), target: filepath.Clean(r.GetTargetPath()),
		stage: &csi.NodeStageVolumeRequest{
			VolumeId: r.GetVolumeId(), StagingTargetPath: r.GetStagingTargetPath(), VolumeCapability: r.GetVolumeCapability(),
			PublishContext: r.GetPublishContext(), VolumeContext: r.GetVolumeContext(),
		},
	}, nil
}

// checkNames checks a volume id and a path.
func checkNames(volume, what, path string) error {
	switch {
	case volume == "":
		return fmt.Errorf("%w: no volume id", ErrInvalid)
	case path == "":
		return fmt.Errorf("%w: no %s", ErrInvalid, what)
	case !filepath.IsAbs(path):
		return fmt.Errorf("%w: %s %q is not absolute", ErrInvalid, what, path)
	default:
		return nil
	}
}

// checkDirectory checks that a path which the kubelet must create is a directory. It does not
// follow symbolic links.
func checkDirectory(what, path string) error {
	info, err := os.Lstat(path)
	switch {
	case os.IsNotExist(err):
		return fmt.Errorf("%w: %s %s does not exist; the kubelet must create it", ErrRefused, what, path)
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrRefused, what, err)
	case info.Mode()&os.ModeSymlink != 0:
		return fmt.Errorf("%w: %s %s is a symbolic link; the driver does not mount through one", ErrRefused, what, path)
	case !info.IsDir():
		return fmt.Errorf("%w: %s %s is not a directory", ErrRefused, what, path)
	default:
		return nil
	}
}

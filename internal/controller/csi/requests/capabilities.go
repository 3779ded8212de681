package requests

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/fstype"
)

// WantsReadOnly reports whether many nodes are to read a volume.
func WantsReadOnly(all []*csi.VolumeCapability) bool {
	return slices.ContainsFunc(all, func(c *csi.VolumeCapability) bool {
		return c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	})
}

// checkCreate checks how a volume that is to be made will be used.
func checkCreate(r *csi.CreateVolumeRequest, readOnly bool) error {
	switch {
	case !readOnly:
		return CheckCapabilities(r.GetVolumeCapabilities())
	case r.GetVolumeContentSource().GetVolume() != nil:
		return fmt.Errorf("ReadOnlyMany for a clone of a volume is %w: take a VolumeSnapshot, and name that as the claim's dataSource",
			volumes.ErrUnsupported)
	case r.GetVolumeContentSource().GetSnapshot() == nil:
		return fmt.Errorf("ReadOnlyMany for a volume without a source is %w: it would stay empty; name a VolumeSnapshot as the claim's "+
			"dataSource, or use ReadWriteOnce", volumes.ErrUnsupported)
	}
	return CheckReadOnly(r.GetVolumeCapabilities())
}

// CheckReadOnly accepts what can be done with a read-only volume.
func CheckReadOnly(all []*csi.VolumeCapability) error {
	if err := checkTypes(all); err != nil {
		return err
	}
	for _, c := range all {
		if mode := c.GetAccessMode().GetMode(); mode != csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY {
			return fmt.Errorf("access mode %s for a volume with ReadOnlyMany is %w: nobody can write to it; make a claim of its own "+
				"for each access mode", mode, volumes.ErrUnsupported)
		}
		if slices.Contains(c.GetMount().GetMountFlags(), "rw") {
			return fmt.Errorf("the mount option rw for a volume with ReadOnlyMany is %w: it is always mounted read-only; leave it out",
				volumes.ErrUnsupported)
		}
	}
	return nil
}

// checkTypes accepts block volumes, and the filesystems that are known.
func checkTypes(all []*csi.VolumeCapability) error {
	if len(all) == 0 {
		return fmt.Errorf("volume capabilities are missing: %w", volumes.ErrInvalid)
	}
	for _, c := range all {
		if c.GetBlock() == nil && c.GetMount() == nil {
			return fmt.Errorf("a volume capability has neither block nor mount: %w", volumes.ErrInvalid)
		}
		if fsType := c.GetMount().GetFsType(); fsType != "" {
			if err := fstype.Known(fsType); err != nil {
				return fmt.Errorf("%w: %w", volumes.ErrInvalid, err)
			}
		}
	}
	return nil
}

// CheckCapabilities accepts what one node at a time can do, because a write-back cache cannot be
// shared.
func CheckCapabilities(all []*csi.VolumeCapability) error {
	if err := checkTypes(all); err != nil {
		return err
	}
	for _, c := range all {
		switch mode := c.GetAccessMode().GetMode(); mode { //nolint:exhaustive // every other mode, also one of a later CSI, is refused
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER,
			csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		case csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
			return fmt.Errorf("access mode %s is %w: use a mode that may write, and mount it read-only", mode, volumes.ErrUnsupported)
		case csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY:
			return fmt.Errorf("access mode %s is %w: only a claim of its own that is made from a VolumeSnapshot can have ReadOnlyMany",
				mode, volumes.ErrUnsupported)
		default:
			return fmt.Errorf("access mode %s is %w: a write-back cache belongs to one node at a time; use ReadWriteOnce or "+
				"ReadWriteOncePod", mode, volumes.ErrUnsupported)
		}
	}
	return nil
}

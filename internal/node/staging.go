package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func newUUID() string { return uuid.NewString() }

// prepareStaging looks at what is mounted at the staging path. True means that the volume is staged there as asked. A mount
// that a dead device has left is removed.
func (s *Service) prepareStaging(ctx context.Context, r stageRequest, device blockdev.Number) (staged bool, err error) {
	table, err := s.Mounter.Table()
	if err != nil {
		return false, err
	}
	at := mounts.At(table, r.path)
	switch {
	case at == nil:
		return false, nil
	case at.Device != device && s.Devices.Dead(at.Device):
		return false, s.removeDead(ctx, r.volume, r.path)
	case at.Device != device:
		return false, fmt.Errorf("%w: device %s is mounted at %s, and volume %s is device %s; unmount it",
			ErrIncompatible, at.Device, r.path, r.volume, device)
	case r.block:
		return false, fmt.Errorf("%w: volume %s is mounted at %s, and a block volume is wanted", ErrIncompatible, r.volume, r.path)
	case at.FSType != r.fsType:
		return false, fmt.Errorf("%w: volume %s is mounted at %s with %s, and %s is wanted",
			ErrIncompatible, r.volume, r.path, at.FSType, r.fsType)
	case at.FilesystemReadOnly && !r.readOnly:
		return false, s.unmountReadOnly(ctx, r, table, device)
	}
	if difference := optionsDiffer(r.options, r.readOnly, *at); difference != "" {
		return false, fmt.Errorf("%w: volume %s is mounted at %s %s", ErrIncompatible, r.volume, r.path, difference)
	}
	return true, nil
}

// unmountReadOnly unmounts a filesystem that an error has turned read-only, so that it can be mounted again, unless a pod still has it.
func (s *Service) unmountReadOnly(ctx context.Context, r stageRequest, table []mounts.Entry, device blockdev.Number) error {
	if users := otherPaths(mounts.Of(table, device), r.path); len(users) > 0 {
		return fmt.Errorf("%w: the filesystem of volume %s has turned read-only after an error, and pods still use it at %s; delete them, "+
			"then it is mounted anew", ErrRefused, r.volume, strings.Join(users, ", "))
	}
	return s.Mounter.Unmount(ctx, r.volume, r.path)
}

// removeDead removes the mount of a dead device: properly if that works, or else by taking it out of the tree.
func (s *Service) removeDead(ctx context.Context, volume, path string) error {
	s.Logger.WarnContext(ctx, "removing the mount of a dead device", "volume", volume, "path", path)
	if err := s.Mounter.Unmount(ctx, volume, path); err != nil {
		return s.Mounter.Detach(ctx, volume, path)
	}
	return nil
}

// otherPaths returns the paths of entries that are not at path.
func otherPaths(entries []mounts.Entry, path string) []string {
	var paths []string
	for _, e := range entries {
		if e.Path != path {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// visible are the options that the mount table shows exactly when they are on.
func visible() []string {
	return []string{"noatime", "nodiratime", "nodev", "nosuid", "noexec", "sync", "dirsync", "lazytime", "discard"}
}

// optionsDiffer compares wanted options with a mount, as far as the mount table shows them. It returns "" or what differs.
func optionsDiffer(wanted []string, readOnly bool, at mounts.Entry) string {
	if readOnly != at.ReadOnly {
		return map[bool]string{true: "read-only, and writing is wanted", false: "writable, and read-only is wanted"}[at.ReadOnly]
	}
	for _, name := range visible() {
		if want, is := slices.Contains(wanted, name), slices.Contains(at.Options, name); want != is {
			return map[bool]string{true: "with " + name, false: "without " + name}[is] + ", and the opposite is wanted"
		}
	}
	for _, key := range []string{"errors=", "context="} {
		want := value(wanted, key)
		if is := value(at.Options, key); want != "" && is != want {
			return fmt.Sprintf("with %s%s, and %s%s is wanted", key, is, key, want)
		}
	}
	return ""
}

// value returns what stands behind the key, without the quotes that an SELinux context with a comma has.
func value(options []string, key string) string {
	for _, o := range options {
		if v, ok := strings.CutPrefix(o, key); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

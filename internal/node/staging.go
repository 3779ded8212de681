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

// prepareStaging checks what is mounted at the staging path. It returns true if the volume is
// staged there as wanted. It removes the mount of a dead device, and one that an error has turned
// read-only.
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
		return false, fmt.Errorf("%w: device %s is mounted at %s, but volume %s is device %s; unmount it",
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

// unmountReadOnly unmounts a filesystem that an error has turned read-only, so that it can be
// mounted again. It refuses while a pod uses it.
func (s *Service) unmountReadOnly(ctx context.Context, r stageRequest, table []mounts.Entry, device blockdev.Number) error {
	if users := otherPaths(mounts.Of(table, device), r.path); len(users) > 0 {
		return fmt.Errorf("%w: the filesystem of volume %s has turned read-only after an error, and pods still use it at %s; delete them, "+
			"then it is mounted again", ErrRefused, r.volume, strings.Join(users, ", "))
	}
	return s.Mounter.Unmount(ctx, r.volume, r.path)
}

// removeDead unmounts a dead device or, if that fails, detaches its mount.
func (s *Service) removeDead(ctx context.Context, volume, path string) error {
	s.Logger.WarnContext(ctx, "removing the mount of a dead device", "volume", volume, "path", path)
	if err := s.Mounter.Unmount(ctx, volume, path); err != nil {
		return s.Mounter.Detach(ctx, volume, path)
	}
	return nil
}

// otherPaths returns the paths of the entries, without path itself.
func otherPaths(entries []mounts.Entry, path string) []string {
	var paths []string
	for _, e := range entries {
		if e.Path != path {
			paths = append(paths, e.Path)
		}
	}
	return paths
}

// visible are the options that the mount table shows if and only if they are on.
func visible() []string {
	return []string{"noatime", "nodiratime", "nodev", "nosuid", "noexec", "sync", "dirsync", "lazytime", "discard"}
}

// optionsDiffer compares the wanted options with a mount, as far as the mount table shows them. It
// returns the difference, or "".
func optionsDiffer(wanted []string, readOnly bool, at mounts.Entry) string {
	if readOnly != at.ReadOnly {
		if at.ReadOnly {
			return "read-only, and writing is wanted"
		}
		return "writable, and read-only is wanted"
	}
	for _, name := range visible() {
		if want, is := slices.Contains(wanted, name), slices.Contains(at.Options, name); want != is {
			if is {
				return "with " + name + ", and the opposite is wanted"
			}
			return "without " + name + ", and the opposite is wanted"
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

// value returns the value of an option, without the quotes that surround an SELinux context with a
// comma.
func value(options []string, key string) string {
	for _, o := range options {
		if v, ok := strings.CutPrefix(o, key); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

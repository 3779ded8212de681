package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/google/uuid"

	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func newUUID() string { return uuid.NewString() }

// checkStaging checks that the staging path is a directory. A filesystem that is shut down does not say that of its root.
func (s *Service) checkStaging(path string) error {
	err := checkDirectory("staging target path", path)
	if !errors.Is(err, syscall.EIO) {
		return err
	}
	table, failed := s.Mounter.Table()
	if failed != nil || mounts.At(table, path) == nil {
		return err
	}
	return nil
}

// prepareStaging checks what is mounted at the staging path. It returns true if the volume is
// staged there as wanted. It removes the mount of a dead device, and one that the kernel has stopped
// after an error.
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
	case at.FilesystemReadOnly && !r.readOnly, at.ShutDown():
		return false, s.unmountStopped(ctx, r, table, device)
	}
	if difference := optionsDiffer(r.options, r.readOnly, *at); difference != "" {
		return false, fmt.Errorf("%w: volume %s is mounted at %s %s", ErrIncompatible, r.volume, r.path, difference)
	}
	return true, nil
}

// unmountStopped unmounts a filesystem that the kernel has stopped after an error, so that it can be
// mounted again. It refuses while a pod uses it.
func (s *Service) unmountStopped(ctx context.Context, r stageRequest, table []mounts.Entry, device blockdev.Number) error {
	if users := otherPaths(mounts.Of(table, device), r.path); len(users) > 0 {
		return fmt.Errorf("%w: the kernel has stopped the filesystem of volume %s after an error, and pods still use it at %s; delete "+
			"them, then it is mounted again", ErrRefused, r.volume, strings.Join(users, ", "))
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

// optionsDiffer compares the wanted options with a mount, and returns the difference, or "". The
// kubelet repeats the call for volumes that pods use, and the mount table does not show options as
// they were asked for: the kernel drops some, and one brings or undoes others. So only what the
// table always shows is compared, and only where pods could do what they must not.
func optionsDiffer(wanted []string, readOnly bool, at mounts.Entry) string {
	if readOnly != at.ReadOnly {
		if at.ReadOnly {
			return "read-only, and writing is wanted"
		}
		return "writable, and read-only is wanted"
	}
	for _, pair := range [][2]string{{"nodev", "dev"}, {"nosuid", "suid"}, {"noexec", "exec"}} {
		if isOn(wanted, pair[0], pair[1]) && !slices.Contains(at.Options, pair[0]) {
			return "without " + pair[0] + ", which is wanted"
		}
	}
	const key = "context="
	want, is := value(wanted, key), value(at.Options, key)
	// mount(8) leaves the context out where SELinux is off. Where it is on, the table shows
	// seclabel for a mount without a context of its own.
	enforced := is != "" || slices.Contains(at.Options, "seclabel")
	if want != "" && enforced && !sameContext(want, is) {
		return fmt.Sprintf("with %s%s, and %s%s is wanted", key, is, key, want)
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

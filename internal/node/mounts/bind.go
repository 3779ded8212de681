package mounts

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BindReadOnly bind-mounts a directory or a device node at target, read-only from its first moment. Linux has had the calls
// for that since 5.12; the mount(8) of Debian 12 binds first and then makes the mount read-only. A process that is killed
// between the two leaves a writable mount. And other mount namespaces get the mount, but never the change: in a pod, mount(8)
// would make a mount that is writable on the host.
func BindReadOnly(source, target string) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return &os.PathError{Op: "open_tree", Path: source, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make a mount of %s read-only: %w", source, err)
	}
	if err := unix.MoveMount(fd, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "move_mount", Path: target, Err: err}
	}
	return nil
}

package mounts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mount "k8s.io/mount-utils"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
)

const mountinfo = `
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
40 22 252:3 / /var/lib/kubelet/plugins/kubernetes.io/csi/csi.escache.io/aa/globalmount rw,relatime shared:9 - ext4 /dev/dm-3 rw,seclabel
41 22 252:3 / /var/lib/kubelet/pods/p1/volumes/kubernetes.io~csi/pv\0401/mount ro,relatime shared:9 - ext4 /dev/dm-3 rw
42 22 252:4 / /mnt/broken rw,relatime - ext4 /dev/dm-4 ro,errors=remount-ro
43 22 0:6 /dm-5 /var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv2/p2 rw - devtmpfs udev rw,size=4k
44 22 0:6 / /dev rw - devtmpfs udev rw
45 22 252:9 / /mnt/broken rw,relatime - xfs /dev/dm-9 rw
`

func table(t *testing.T) []Entry {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(file, []byte(strings.TrimPrefix(mountinfo, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	infos, err := mount.ParseMountInfo(file)
	if err != nil {
		t.Fatal(err)
	}
	return entries(infos, func(string) (blockdev.Number, error) { return blockdev.Number{Major: 252, Minor: 5}, nil })
}

func TestTableKnowsVolumesByDeviceNumber(t *testing.T) {
	all := table(t)
	var paths []string
	for _, e := range Of(all, blockdev.Number{Major: 252, Minor: 3}) {
		paths = append(paths, filepath.Base(e.Path))
	}
	if !slices.Equal(paths, []string{"globalmount", "mount"}) {
		t.Errorf("mounts of 252:3: %q", paths)
	}
	if e := At(all, "/var/lib/kubelet/pods/p1/volumes/kubernetes.io~csi/pv 1/mount"); e == nil || !e.ReadOnly || e.FilesystemReadOnly {
		t.Errorf("read-only bind mount: %+v", e)
	}
	if e := At(all, "/mnt/broken"); e == nil || e.FSType != "xfs" {
		t.Errorf("the topmost mount counts: %+v", e)
	}
	if e := all[3]; !e.FilesystemReadOnly {
		t.Errorf("a filesystem that turned read-only: %+v", e)
	}
	if e := Of(all, blockdev.Number{Major: 252, Minor: 5}); len(e) != 1 || !e[0].Node {
		t.Errorf("a published device node: %+v", e)
	}
	if e := At(all, "/dev"); e.Node {
		t.Errorf("/dev itself is no published device: %+v", e)
	}
}

func TestBindTakesOneCommand(t *testing.T) {
	var ran []string
	m := NewMounter(command.RunnerFunc(func(_ context.Context, c command.Command) (command.Result, error) {
		ran = append(ran, c.String())
		return command.Result{}, nil
	}), []string{"csi-node", "bind-read-only"})
	for _, readOnly := range []bool{false, true} {
		if err := m.Bind(t.Context(), "v", "/staging", "/target", readOnly); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"mount -o bind /staging /target", "csi-node bind-read-only /staging /target"}; !slices.Equal(ran, want) {
		t.Errorf("ran %q", ran)
	}
}

func TestUnmountReportsBusy(t *testing.T) {
	m := NewMounter(command.RunnerFunc(func(context.Context, command.Command) (command.Result, error) {
		return command.Result{}, &command.ExitError{Command: "umount", Code: 32, Stderr: "umount: /x: target is busy."}
	}), nil)
	if err := m.Unmount(t.Context(), "v", "/x"); !errors.Is(err, ErrBusy) {
		t.Errorf("got %v", err)
	}
}

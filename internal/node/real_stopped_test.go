package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/node/mounts"
)

// The kernel turns ext4 read-only at an error, and xfs shuts itself down. Health reports that, no further pod gets the
// filesystem, and staging mounts it again once no pod uses it.
func TestAFilesystemThatTheKernelHasStoppedIsMountedAnew(t *testing.T) {
	if !privately(t) {
		return
	}
	for fsType, stop := range map[string]func(t *testing.T, device, path string){
		"ext4": func(t *testing.T, device, _ string) {
			t.Helper()
			sh(t, "echo 1 > /sys/fs/ext4/"+filepath.Base(device)+"/trigger_fs_error")
		},
		"xfs": shutDownXFS,
	} {
		t.Run(fsType, func(t *testing.T) {
			h, pods := newHost(), t.TempDir()
			realVolume(t, h, "v", 320<<20)
			staging := t.TempDir()
			t.Cleanup(func() { _ = exec.Command("umount", pods+"/a", pods+"/b", staging).Run() })
			stage := func() error {
				_, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, mountCapability(fsType)))
				return err
			}
			publish := func(target string) error {
				_, err := realService(h).NodePublishVolume(t.Context(), publishOf(staging, target, mountCapability(fsType)))
				return err
			}
			check(t, stage())
			check(t, publish(pods+"/a"))
			stop(t, h.devices["v"], staging)
			if out, err := exec.Command("sh", "-c", "echo x > "+staging+"/file").CombinedOutput(); err == nil {
				t.Fatalf("%s still takes writes: %s", h.devices["v"], out)
			}

			health, err := realService(h).NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "v"})
			if err != nil || !strings.Contains(fmt.Sprint(health), "FilesystemReadOnly") {
				t.Errorf("health %v %v", health, err)
			}
			if err := publish(pods + "/b"); Code(err) != codes.FailedPrecondition {
				t.Errorf("published to another pod: %v", err)
			}
			if err := stage(); Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), pods+"/a") {
				t.Errorf("staged again under a pod: %v", err)
			}
			table, err := mounts.NewMounter(nil, nil).Table()
			if at := mounts.At(table, staging); err != nil || at == nil || len(mounts.Of(table, at.Device)) != 2 {
				t.Errorf("at the staging path: %+v, %v", at, err)
			}

			_, err = realService(h).NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: pods + "/a"})
			check(t, err)
			check(t, stage())
			check(t, publish(pods+"/b"))
			sh(t, "echo x > "+pods+"/b/file")
		})
	}
}

// shutDownXFS does what xfs does when the log cannot be written.
func shutDownXFS(t *testing.T, _, path string) {
	t.Helper()
	const (
		goingDown  = 0x8004587d // XFS_IOC_GOINGDOWN
		noLogFlush = 2          // XFS_FSOP_GOING_FLAGS_NOLOGFLUSH
	)
	root, err := os.Open(path)
	check(t, err)
	defer root.Close()
	check(t, unix.IoctlSetPointerInt(int(root.Fd()), goingDown, noLogFlush))
}

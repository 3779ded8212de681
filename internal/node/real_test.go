package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/mounts"
)

const (
	inspectArgument = "inspect"
	bindArgument    = "bind-read-only"
	// privateMounts is set in the process that has a mount namespace of its own.
	privateMounts = "ESCACHE_TEST_PRIVATE_MOUNTS"
)

// TestMain lets the test binary stand in for `csi-node inspect` and `csi-node bind-read-only`, which run as children.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == bindArgument {
		if err := mounts.BindReadOnly(os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) < 2 || os.Args[1] != inspectArgument {
		os.Exit(m.Run())
	}
	surface, err := fs.Inspect(os.Args[len(os.Args)-1], os.Args[2] == "--scan")
	switch {
	case errors.Is(err, fs.ErrInUse):
		os.Exit(fs.ExitInUse)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(surface)
}

// privately runs the test in a process with a mount namespace of its own; it returns true in there.
func privately(t *testing.T) bool {
	t.Helper()
	if os.Getenv(privateMounts) != "" {
		return true
	}
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts loop devices in a mount namespace of its own")
	}
	child := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), privateMounts+"=1")
	out, err := child.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return false
}

// realService is the service with the real kernel's mounts, filesystems and devices. escached and
// the Kubernetes API are fakes, and a volume's device is a loop device.
func realService(h *host) *Service {
	run := command.NewExec()
	return New(Options{
		Node: "n1", Version: "test", Cache: h, Kube: h, Mounter: mounts.NewMounter(run, []string{os.Args[0], bindArgument}),
		Filesystems: fs.NewTools(run, []string{os.Args[0], inspectArgument}), Devices: NewKernelDevices(),
		Logger: slog.New(slog.DiscardHandler),
	})
}

// realVolume adds a volume on a loop device of that size.
func realVolume(t *testing.T, h *host, name string, size int64) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	device := sh(t, "losetup --find --show "+file)
	t.Cleanup(func() { _ = exec.Command("losetup", "--detach", device).Run() })
	h.attachedOf(name, size)
	if h.devices == nil {
		h.devices = map[string]string{}
	}
	h.devices[name] = device
	return file
}

func sh(t *testing.T, script string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return strings.TrimSpace(string(out))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The life of a volume with the real kernel: staged, published, written, csi-node restarted, grown
// online, unpublished, unstaged, staged again with its data.
func TestVolumeLifeOnARealDevice(t *testing.T) {
	if !privately(t) {
		return
	}
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			h := newHost()
			file := realVolume(t, h, "v", 400<<20)
			staging, pods := t.TempDir(), t.TempDir()
			t.Cleanup(func() { _ = exec.Command("umount", "-R", pods+"/a", pods+"/b", staging).Run() })
			capability := mountCapability(fsType, "noatime,nodiratime", "discard")
			_, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, capability))
			check(t, err)
			publish := publishOf(staging, pods+"/a", capability)
			_, err = realService(h).NodePublishVolume(t.Context(), publish)
			check(t, err)
			sh(t, "echo hello > "+pods+"/a/file; sync "+pods+"/a/file")

			// A new process finds everything as it is, and does nothing twice.
			_, err = realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, capability))
			check(t, err)
			_, err = realService(h).NodePublishVolume(t.Context(), publish)
			check(t, err)
			other := stageOf("v", staging, mountCapability(fsType, "noexec"))
			if _, err = realService(h).NodeStageVolume(t.Context(), other); Code(err) != codes.AlreadyExists {
				t.Errorf("staged with other options: %v", err)
			}
			readOnly := publishOf(staging, pods+"/b", capability)
			readOnly.Readonly = true
			_, err = realService(h).NodePublishVolume(t.Context(), readOnly)
			check(t, err)
			if out, err := exec.Command("sh", "-c", "echo x > "+pods+"/b/file").CombinedOutput(); err == nil {
				t.Errorf("a read-only publish takes writes: %s", out)
			}

			if fsType == "ext4" && !mayResizeExt4(t) {
				t.Log("not grown: ext4 grows online only with CAP_SYS_RESOURCE; test/e2e does it on a host that has it")
			} else {
				growOnline(t, h, file, staging, pods+"/a")
			}

			if _, err = realService(h).NodeUnstageVolume(t.Context(), unstageOf(staging)); Code(err) != codes.FailedPrecondition {
				t.Errorf("unstaged while published: %v", err)
			}
			for _, pod := range []string{pods + "/a", pods + "/b"} {
				_, err = realService(h).NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: pod})
				check(t, err)
			}
			_, err = realService(h).NodeUnstageVolume(t.Context(), unstageOf(staging))
			check(t, err)
			_, err = realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, capability))
			check(t, err)
			if got := sh(t, "cat "+staging+"/file"); got != "hello" {
				t.Errorf("after staging again: %q", got)
			}
			if record := h.volumes["v"].Annotations[v1alpha1.AnnotationFilesystem]; !strings.Contains(record, `"formatted"`) {
				t.Errorf("record %s", record)
			}
			_, err = realService(h).NodeUnstageVolume(t.Context(), unstageOf(staging))
			check(t, err)
		})
	}
}

func growOnline(t *testing.T, h *host, file, staging, pod string) {
	t.Helper()
	before := usage(t, pod)
	check(t, os.Truncate(file, 800<<20))
	sh(t, "losetup --set-capacity "+h.devices["v"])
	h.volumes["v"].Spec.SizeBytes = 800 << 20
	_, err := realService(h).NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{
		VolumeId: "v", VolumePath: pod, StagingTargetPath: staging, CapacityRange: &csi.CapacityRange{RequiredBytes: 800 << 20},
	})
	check(t, err)
	if after := usage(t, pod); after < before*18/10 {
		t.Errorf("grew from %d to %d bytes", before, after)
	}
}

// mayResizeExt4 reports whether this process has CAP_SYS_RESOURCE (24), which the kernel wants for
// it.
func mayResizeExt4(t *testing.T) bool {
	t.Helper()
	effective, err := strconv.ParseUint(sh(t, "sed -n 's/^CapEff:[^0-9a-f]*//p' /proc/self/status"), 16, 64)
	check(t, err)
	return effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func usage(t *testing.T, path string) int64 {
	t.Helper()
	answer, err := realService(newHost()).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: path})
	check(t, err)
	return answer.GetUsage()[0].GetTotal()
}

// A raw device is published as a device node: what is written there is on the device.
func TestABlockVolumeOnARealDevice(t *testing.T) {
	if !privately(t) {
		return
	}
	h := newHost()
	file := realVolume(t, h, "v", 16<<20)
	staging, target := t.TempDir(), t.TempDir()+"/dev"
	t.Cleanup(func() { _ = exec.Command("umount", target).Run() })
	_, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, blockCapability()))
	check(t, err)
	for range 2 {
		_, err = realService(h).NodePublishVolume(t.Context(), publishOf(staging, target, blockCapability()))
		check(t, err)
	}
	sh(t, "printf raw | dd of="+target+" conv=fsync,notrunc 2>&1")
	answer, err := realService(h).NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: target})
	if err != nil || answer.GetUsage()[0].GetTotal() != 16<<20 {
		t.Errorf("%v %v", answer, err)
	}
	if _, err = realService(h).NodeUnstageVolume(t.Context(), unstageOf(staging)); Code(err) != codes.FailedPrecondition {
		t.Errorf("unstaged while published: %v", err)
	}
	_, err = realService(h).NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
	check(t, err)
	if _, err := os.Lstat(target); !os.IsNotExist(err) {
		t.Errorf("the target is still there: %v", err)
	}
	if got := sh(t, "head -c 3 "+file); got != "raw" {
		t.Errorf("on the device: %q", got)
	}
}

// A clone has its source's UUID, and both are used on one host.
func TestAnXFSCloneIsMountedBesideItsSource(t *testing.T) {
	if !privately(t) {
		return
	}
	h := newHost()
	source := realVolume(t, h, "v", 320<<20)
	clone := realVolume(t, h, "w", 640<<20)
	stagingV, stagingW := t.TempDir(), t.TempDir()
	t.Cleanup(func() { _ = exec.Command("umount", stagingV, stagingW).Run() })
	_, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", stagingV, mountCapability("xfs")))
	check(t, err)
	sh(t, "echo data > "+stagingV+"/file; sync -f "+stagingV+"; dd if="+source+" of="+clone+" conv=notrunc bs=1M 2>&1")
	_, err = realService(h).NodeStageVolume(t.Context(), stageOf("w", stagingW, mountCapability("xfs")))
	check(t, err)
	if got := sh(t, "cat "+stagingW+"/file"); got != "data" {
		t.Errorf("the clone holds %q", got)
	}
	// Restored into a larger volume: it was grown at once.
	if size := usage(t, stagingW); size < 500<<20 {
		t.Errorf("the clone's filesystem has %d bytes", size)
	}
}

// A damaged filesystem is not mounted, not repaired and not formatted; the checker's words reach
// the operator.
func TestADamagedFilesystemIsReported(t *testing.T) {
	if !privately(t) {
		return
	}
	for fsType, damage := range map[string]string{
		// The group descriptors, and the root inode's block of an xfs.
		"ext4": "dd if=/dev/urandom of=$DEV bs=4096 seek=1 count=1 conv=fsync 2>&1",
		"xfs":  "xfs_db -x -c 'sb 0' -c 'write -d rootino 1' $DEV",
	} {
		t.Run(fsType, func(t *testing.T) {
			h := newHost()
			realVolume(t, h, "v", 320<<20)
			dev := h.devices["v"]
			sh(t, "DEV="+dev+"; mkfs."+fsType+" -q $DEV; "+damage)
			before := sh(t, "blkid -p "+dev)
			staging := t.TempDir()
			_, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, mountCapability(fsType)))
			if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), " says: ") {
				t.Fatalf("%s: %v", Code(err), err)
			}
			t.Log(err)
			if after := sh(t, "blkid -p "+dev); after != before {
				t.Errorf("the device held %s and holds %s", before, after)
			}
			if _, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, mountCapability(fsType))); err == nil {
				t.Error("somebody has repaired it")
			}
			if h.status("v").Device != "" {
				t.Error("the volume stays connected after a final error")
			}
		})
	}
}

// A frozen device: the calls come back, and further calls do not pile up behind them.
func TestAFrozenFilesystemDoesNotHangTheService(t *testing.T) {
	if !privately(t) {
		return
	}
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			h := newHost()
			realVolume(t, h, "v", 320<<20)
			staging := t.TempDir()
			s := realService(h)
			_, err := s.NodeStageVolume(t.Context(), stageOf("v", staging, mountCapability(fsType)))
			check(t, err)
			sh(t, "echo x > "+staging+"/file; fsfreeze --freeze "+staging)
			thaw := func() { _ = exec.Command("fsfreeze", "--unfreeze", staging).Run() }
			t.Cleanup(func() { thaw(); _ = exec.Command("umount", staging).Run() })
			started := time.Now()
			if _, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: staging}); err != nil {
				t.Errorf("statistics: %v", err)
			}
			health, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "v"})
			if err != nil || strings.Contains(fmt.Sprint(health), "FilesystemReadOnly") {
				t.Errorf("health %v %v", health, err)
			}
			if took := time.Since(started); took > usageTime {
				t.Errorf("statistics and health took %s", took)
			}
			thaw()
			_, err = s.NodeUnstageVolume(t.Context(), unstageOf(staging))
			check(t, err)
		})
	}
}

// csi-test's suite with the real kernel.
func TestSanityWithMountsOnRealDevices(t *testing.T) {
	if privately(t) {
		sanityOnRealDevices(t, "mount")
	}
}

func TestSanityWithBlockOnRealDevices(t *testing.T) {
	if privately(t) {
		sanityOnRealDevices(t, "block")
	}
}

func sanityOnRealDevices(t *testing.T, access string) {
	t.Helper()
	h := newHost()
	h.made = func(name string) { realVolume(t, h, name, 1<<30) }
	if access == "mount" && !mayResizeExt4(t) {
		t.Log("volumes do not grow in this run: ext4 grows online only with CAP_SYS_RESOURCE")
	} else {
		h.resized = growLoop(t, h)
	}
	runSanity(t, h, realService(h), access)
	table, err := mounts.NewMounter(nil, nil).Table()
	check(t, err)
	for name, device := range h.devices {
		if n, err := blockdev.NumberOf(device); err == nil && len(mounts.Of(table, n)) > 0 {
			t.Errorf("%s is still mounted: %+v", name, mounts.Of(table, n))
		}
	}
}

func growLoop(t *testing.T, h *host) func(name string, size int64) {
	return func(name string, size int64) {
		file := sh(t, "losetup --noheadings --output BACK-FILE "+h.devices[name])
		check(t, os.Truncate(file, size))
		sh(t, "losetup --set-capacity "+h.devices[name])
	}
}

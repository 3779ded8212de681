package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	mount "k8s.io/mount-utils"
)

// In the chart's pod csi-node has a mount namespace of its own, which shares the kubelet's directory with the host's.
// What csi-node mounts there shows up on the host, but not what it changes about a mount afterwards. A csi-node that starts
// again sees what the host sees.
func TestAReadOnlyPublishIsReadOnlyForTheHostToo(t *testing.T) {
	if !privately(t) {
		return
	}
	for _, kind := range []string{"mount", "block"} {
		t.Run(kind, func(t *testing.T) {
			h, kubelet := newHost(), t.TempDir()
			realVolume(t, h, "v", 64<<20)
			sh(t, "mount -t tmpfs kubelet "+kubelet+" && mount --make-rshared "+kubelet+" && mkdir "+kubelet+"/staging")
			staging, target := kubelet+"/staging", kubelet+"/target"
			t.Cleanup(func() { _ = exec.Command("umount", "--recursive", kubelet).Run() })
			host := inNamespace(t, "unchanged", "exec sleep 600")
			capability := mountCapability("ext4")
			if kind == "block" {
				capability = blockCapability()
			}
			_, err := realService(h).NodeStageVolume(t.Context(), stageOf("v", staging, capability))
			check(t, err)
			r := publishOf(staging, target, capability)
			r.Readonly = true
			publish := func() {
				t.Helper()
				_, err := realService(h).NodePublishVolume(t.Context(), r)
				check(t, err)
			}
			publish()
			readOnly := func() {
				t.Helper()
				for _, process := range []int{os.Getpid(), host} {
					if at := mountAt(t, process, target); !slices.Contains(at.MountOptions, "ro") {
						t.Errorf("process %d sees it as %+v", process, at)
					}
				}
			}
			readOnly()

			// The kubelet repeats the call for a running pod after its own restart. The kernel uses a mount's ID again, so
			// an option marks the mount.
			sh(t, "mount -o remount,bind,ro,noatime "+target)
			publish()
			if at := mountAt(t, os.Getpid(), target); !slices.Contains(at.MountOptions, "noatime") {
				t.Errorf("it was mounted anew: %+v", at)
			}

			// An earlier version left it writable, and a pod runs there. The pod goes on with the mount that it has.
			sh(t, fmt.Sprintf("for p in %d %d; do nsenter --mount=/proc/$p/ns/mnt mount -o remount,bind,rw %s; done", os.Getpid(), host, target))
			pod := inNamespace(t, "private", "exec sleep 600 < "+target)
			publish()
			readOnly()
			if open, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", pod)); err != nil || open != target {
				t.Errorf("the pod has %s open: %v", open, err)
			}
		})
	}
}

// inNamespace starts a script in a mount namespace of its own, and returns its process once it is there.
func inNamespace(t *testing.T, propagation, script string) int {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	sh(t, "mkfifo "+ready)
	child := exec.Command("unshare", "--mount", "--propagation", propagation, "sh", "-ec", "echo > "+ready+"; "+script)
	check(t, child.Start())
	t.Cleanup(func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	})
	sh(t, "timeout 20 cat "+ready)
	return child.Process.Pid
}

// mountAt returns the topmost mount that a process sees at a path.
func mountAt(t *testing.T, process int, path string) mount.MountInfo {
	t.Helper()
	all, err := mount.ParseMountInfo(fmt.Sprintf("/proc/%d/mountinfo", process))
	check(t, err)
	for _, at := range slices.Backward(all) {
		if strings.ReplaceAll(at.MountPoint, `\040`, " ") == path {
			return at
		}
	}
	t.Fatalf("process %d sees no mount at %s", process, path)
	return mount.MountInfo{}
}

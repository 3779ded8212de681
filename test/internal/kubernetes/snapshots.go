package kubernetes

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
)

const snapshotController = "snapshot-controller"

// SnapshotPrograms are the tools that SnapshotConfig.Programs has to hold.
func SnapshotPrograms() []string { return []string{snapshotController, "kubectl"} }

// SnapshotModule is the Go module whose directory SnapshotConfig.Module is.
const SnapshotModule = "github.com/kubernetes-csi/external-snapshotter/client/v8"

// SnapshotConfig is what a cluster needs for VolumeSnapshots, whatever its drivers are. All is
// needed.
type SnapshotConfig struct {
	Module   string // directory of SnapshotModule, which has the kinds
	Programs map[string]string
}

// groupSnapshots has the snapshot-controller and csi-snapshotter care for VolumeGroupSnapshots.
const groupSnapshots = "--feature-gates=CSIVolumeGroupSnapshot=true"

// StartSnapshots makes the kinds of VolumeSnapshots and VolumeGroupSnapshots known and runs the snapshot-controller, as
// administrator.
func (c *ControlPlane) StartSnapshots(ctx context.Context, cfg SnapshotConfig) error {
	kubectl := []string{"--kubeconfig=" + c.Kubeconfig()}
	var files []string
	for _, kind := range []string{
		"snapshot.storage.k8s.io_volumesnapshotclasses", "snapshot.storage.k8s.io_volumesnapshotcontents",
		"snapshot.storage.k8s.io_volumesnapshots",
		"groupsnapshot.storage.k8s.io_volumegroupsnapshotclasses", "groupsnapshot.storage.k8s.io_volumegroupsnapshotcontents",
		"groupsnapshot.storage.k8s.io_volumegroupsnapshots",
	} {
		files = append(files, "--filename="+filepath.Join(cfg.Module, "config", "crd", kind+".yaml"))
	}
	for _, verb := range [][]string{{"apply", "--server-side"}, {"wait", "--for=condition=Established", "--timeout=60s"}} {
		args := append(append(append([]string{}, kubectl...), verb...), files...)
		if out, err := exec.CommandContext(ctx, cfg.Programs["kubectl"], args...).CombinedOutput(); err != nil {
			return fmt.Errorf("kinds of VolumeSnapshots: kubectl %s: %w: %s", verb[0], err, bytes.TrimSpace(out))
		}
	}
	path := cfg.Programs[snapshotController]
	if path == "" {
		return fmt.Errorf("no path of %s given", snapshotController)
	}
	return c.runProgram(snapshotController, path, "--kubeconfig="+c.Kubeconfig(), "--leader-election=false", "--v=1", groupSnapshots)
}

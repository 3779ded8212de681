package kubetest

import (
	"context"
	"os"
	"testing"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
)

// Tools returns the paths of programs by name, and builds missing ones first. test/buildtools lists
// the names.
func Tools(t testing.TB, names ...string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
	defer cancel()
	paths, err := builder(t).Paths(ctx, names...)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func builder(t testing.TB) *toolbuilder.Builder {
	t.Helper()
	cache, err := buildcache.Open("")
	if err != nil {
		t.Fatal(err)
	}
	b, err := toolbuilder.New(".", cache, progress.New(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Snapshots installs the CRDs of VolumeSnapshots and starts the snapshot-controller. Sidecars that
// start afterwards include the real external-snapshotter.
func (c *ControlPlane) Snapshots(t testing.TB) {
	t.Helper()
	programs := Tools(t, kubernetes.SnapshotPrograms()...)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	module, err := builder(t).Module(ctx, "csi", kubernetes.SnapshotModule)
	if err == nil {
		err = c.control.StartSnapshots(ctx, kubernetes.SnapshotConfig{Module: module, Programs: programs})
	}
	if err != nil {
		t.Fatal(err)
	}
	c.snapshots = true
}

// Sidecars starts the real external-provisioner, -attacher and -resizer on a driver's socket. They
// end with the test. If the test fails, their logs are shown.
func (c *ControlPlane) Sidecars(t testing.TB, name, socket string, args map[string][]string) {
	t.Helper()
	c.SidecarsAs(t, Account{Kubeconfig: c.Kubeconfig(), Namespace: "default"}, name, socket, args)
}

// SidecarsAs is like Sidecars, with the rights of an account.
func (c *ControlPlane) SidecarsAs(t testing.TB, account Account, name, socket string, args map[string][]string) {
	t.Helper()
	sidecars, err := kubernetes.StartSidecars(t.Context(), kubernetes.SidecarConfig{
		Name: name, Dir: t.TempDir(), Socket: socket, Kubeconfig: account.Kubeconfig, Namespace: account.Namespace,
		Programs: Tools(t, kubernetes.SidecarPrograms()...), Snapshots: c.snapshots, Args: args,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sidecars.Stop(context.Background()); err != nil {
			t.Log(err)
		}
		if !t.Failed() {
			return
		}
		for part, path := range sidecars.Logs() {
			text, _ := os.ReadFile(path)
			t.Logf("%s:\n%s", part, text[max(0, len(text)-8000):])
		}
	})
}

// Package kubetest starts a real Kubernetes control plane on loopback for tests: etcd, API server,
// controller manager and scheduler, without nodes. It starts in 4 s, or minutes if the programs
// must be built first (test/buildtools), and ends with the test process, even if that is killed.
package kubetest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
)

// buildTimeout is for a cold cache on two cores; startTimeout for a loaded machine.
const (
	buildTimeout = 30 * time.Minute
	startTimeout = 2 * time.Minute
)

// ControlPlane is a running control plane.
type ControlPlane struct {
	control   *kubernetes.ControlPlane
	kubectl   string
	audit     string // the file with all requests, empty where none is kept
	snapshots bool   // VolumeSnapshots are known
}

// Start starts a control plane for one test, which ends with it.
func Start(t testing.TB) *ControlPlane {
	t.Helper()
	return startFor(t, false)
}

// StartAudited is Start with a log of who asked for what, for ControlPlane.CheckRights.
func StartAudited(t testing.TB) *ControlPlane {
	t.Helper()
	return startFor(t, true)
}

func startFor(t testing.TB, audited bool) *ControlPlane {
	t.Helper()
	cluster, err := start(t.TempDir(), audited)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.control.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

func start(dir string, audited bool) (*ControlPlane, error) {
	cache, err := buildcache.Open("")
	if err != nil {
		return nil, err
	}
	builder, err := toolbuilder.New(".", cache, progress.New(os.Stderr))
	if err != nil {
		return nil, err
	}
	building, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	programs, err := builder.Paths(building, append(kubernetes.Programs(), "kubectl")...)
	if err != nil {
		return nil, err
	}
	starting, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	config := kubernetes.Config{Dir: filepath.Join(dir, "kubernetes"), Address: "127.0.0.1", Programs: programs}
	audit := ""
	if audited {
		if audit, config.APIServerArgs, err = auditArgs(dir); err != nil {
			return nil, err
		}
	}
	control, err := kubernetes.Start(starting, config)
	if err != nil {
		return nil, err
	}
	return &ControlPlane{control: control, kubectl: programs["kubectl"], audit: audit}, nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.control.Kubeconfig() }

// Kubectl is the path of a kubectl of the same version.
func (c *ControlPlane) Kubectl() string { return c.kubectl }

// UserKubeconfig makes a kubeconfig for a user in these groups, whose rights are what RBAC gives
// them.
func (c *ControlPlane) UserKubeconfig(t testing.TB, user string, groups ...string) []byte {
	t.Helper()
	config, err := c.control.UserKubeconfig(user, groups...)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// StopAPIServer ends the API server as a crash would, until the returned function is called or the
// test ends. What it stored stays.
func (c *ControlPlane) StopAPIServer(t testing.TB) (start func()) {
	t.Helper()
	if err := c.control.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	start = func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := c.control.StartAPIServer(ctx); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(start)
	return start
}

//go:build lab

package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
)

func builtTools(t *testing.T, names ...string) map[string]string {
	t.Helper()
	cache, err := buildcache.Open("")
	if err != nil {
		t.Fatal(err)
	}
	builder, err := toolbuilder.New(".", cache, progress.New(os.Stderr))
	if err != nil {
		t.Fatal(err)
	}
	paths, err := builder.Paths(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// onLoopback starts a control plane without nodes and returns it with a kubectl that is its
// administrator's.
func onLoopback(t *testing.T) (c *ControlPlane, kubectl func(stdin string, args ...string) (string, error)) {
	t.Helper()
	programs := builtTools(t, append(Programs(), "kubectl")...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	begin := time.Now()
	c, err := Start(ctx, Config{
		Dir: t.TempDir(), Address: "127.0.0.1", Programs: programs, Nodes: []string{"early"},
		Log: func(step string) { t.Log(time.Since(begin), step) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(time.Since(begin), "ready")
	t.Cleanup(func() {
		if err := c.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c, func(stdin string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, programs["kubectl"], append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		err := cmd.Run()
		if err != nil {
			err = errors.Join(err, errors.New(complaints.String()))
		}
		return out.String(), err
	}
}

const pendingPod = `{apiVersion: v1, kind: Pod, metadata: {name: waits}, spec: {containers: [{name: c, image: "lab/busybox:1"}]}}`

func TestControlPlaneKeepsItsStateWhileTheAPIServerIsDown(t *testing.T) {
	c, kubectl := onLoopback(t)
	if out, err := kubectl(pendingPod, "apply", "-f", "-"); err != nil {
		t.Fatal(out, err)
	}
	// The scheduler has looked at the pod: it works, and there is no node.
	if out, err := kubectl("", "wait", "--for=condition=PodScheduled=false", "pod/waits", "--timeout=20s"); err != nil {
		t.Error(out, err)
	}
	if err := c.StopAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out, err := kubectl("", "get", "pods", "--request-timeout=3s"); err == nil {
		t.Errorf("the API server is down and answers %s", out)
	}
	if err := c.Failed(); err == nil || !strings.Contains(err.Error(), "kube-apiserver") {
		t.Errorf("Failed: %v", err)
	}
	begin := time.Now()
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Log("API server back after", time.Since(begin))
	if out, err := kubectl("", "get", "pod", "waits", "-o", "name"); err != nil || strings.TrimSpace(out) != "pod/waits" {
		t.Errorf("after the restart: %q, %v", out, err)
	}
	if err := c.Failed(); err != nil {
		t.Errorf("another part did not outlive the restart: %v", err)
	}
	// Controllers go on after the restart: a new namespace gets its service account from them.
	if out, err := kubectl("", "create", "namespace", "later"); err != nil {
		t.Fatal(out, err)
	}
	if out, err := kubectl("", "wait", "--for=create", "-n", "later", "serviceaccount/default", "--timeout=20s"); err != nil {
		t.Error(out, err)
	}
}

func TestNodesAreThereBeforeTheirKubelets(t *testing.T) {
	_, kubectl := onLoopback(t)
	if out, err := kubectl("", "get", "nodes", "-o", "name"); err != nil || strings.TrimSpace(out) != "node/early" {
		t.Errorf("%q, %v", out, err)
	}
}

func TestNodeMayOnlyTouchItself(t *testing.T) {
	c, kubectl := onLoopback(t)
	config, err := c.UserKubeconfig("system:node:n1", "system:nodes")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "n1")
	if err := os.WriteFile(path, config, 0o600); err != nil {
		t.Fatal(err)
	}
	node := `{apiVersion: v1, kind: Node, metadata: {name: NAME}}`
	if out, err := kubectl(strings.ReplaceAll(node, "NAME", "n1"), "--kubeconfig", path, "create", "-f", "-"); err != nil {
		t.Error(out, err)
	}
	if out, err := kubectl(strings.ReplaceAll(node, "NAME", "n2"), "--kubeconfig", path, "create", "-f", "-"); err == nil {
		t.Errorf("n1 made another node: %s", out)
	}
}

func TestPartThatCannotStartIsNamedWithItsLog(t *testing.T) {
	programs := builtTools(t, Programs()...)
	dir := t.TempDir()
	c, err := Start(t.Context(), Config{Dir: dir, Address: "127.0.0.1", Programs: programs, APIServerArgs: []string{"--no-such-flag"}})
	if err == nil {
		c.Stop(context.Background())
		t.Fatal("started with a flag that the API server does not know")
	}
	for _, part := range []string{"kube-apiserver", dir, "no-such-flag"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not mention %s: %v", part, err)
		}
	}
}

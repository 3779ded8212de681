package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/escache/escache-csi/test/internal/ociimage"
)

const (
	driverNamespace = "escache-system"
	chartRelease    = "escache"
)

// chartParts are what a lab takes from the chart. The pods are not among them: their programs are
// services of the hosts, and of the machine that the lab runs on, with exactly the rights of the
// chart's accounts.
var chartParts = []string{
	"templates/csidriver.yaml", "templates/controller/serviceaccount.yaml", "templates/controller/rbac.yaml", "templates/node/rbac.yaml",
}

func (l *lab) chart() string { return filepath.Join(l.plan.Location.Checkout, "charts", "escache-csi") }

// applyChart makes the driver's kinds, accounts and rights known to Kubernetes.
func (l *lab) applyChart(ctx context.Context) error {
	crds := filepath.Join(l.chart(), "crds")
	if err := l.kubectl(ctx, nil, "apply", "--filename", crds); err != nil {
		return err
	}
	if err := l.applyRights(ctx, nil); err != nil {
		return err
	}
	return l.kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "--filename", crds)
}

// applyRights gives the accounts what the chart gives them for a csi-controller with these flags.
func (l *lab) applyRights(ctx context.Context, flags []string) error {
	objects, err := l.renderChart(ctx, flags)
	if err != nil {
		return err
	}
	namespace := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", driverNamespace)
	return l.kubectl(ctx, append([]byte(namespace), objects...), "apply", "--filename", "-")
}

func (l *lab) renderChart(ctx context.Context, flags []string) ([]byte, error) {
	args := []string{
		"template", chartRelease, l.chart(), "--namespace", driverNamespace,
		"--set", fmt.Sprintf("controller.recovery.taintDeadNodes=%t", slices.Contains(flags, "--taint-dead-nodes")),
		"--set", fmt.Sprintf("controller.recovery.uncachedFallback=%t", slices.Contains(flags, "--uncached-fallback")),
		// None of these parts has them in it, and the chart has to be given some.
		"--set", "ceph.clusterID=lab,ceph.monitors={127.0.0.1},snapshots.enabled=true,snapshots.groups.enabled=true",
	}
	for _, part := range chartParts {
		args = append(args, "--show-only", part)
	}
	home := l.path("helm")
	cmd := exec.CommandContext(ctx, l.plan.Tools["helm"], args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("render the chart: %w: %s", err, complaints.Bytes())
	}
	return out.Bytes(), nil
}

// account is a kubeconfig with the rights of one of the chart's service accounts ("controller",
// "node").
func (l *lab) account(component string) ([]byte, error) {
	return l.kube.UserKubeconfig("system:serviceaccount:"+driverNamespace+":"+chartRelease+"-"+component,
		"system:serviceaccounts", "system:serviceaccounts:"+driverNamespace, "system:authenticated")
}

// writeAccount writes an account's kubeconfig and returns its path.
func (l *lab) writeAccount(component string) (string, error) {
	config, err := l.account(component)
	if err != nil {
		return "", err
	}
	path := l.path("driver", component+".kubeconfig")
	return path, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, config, 0o600))
}

// sidecarImages are CSI's sidecars, built from the pinned modules, under the names that the chart's
// values give them.
func (p *Plan) sidecarImages() ([]ociimage.Image, error) {
	path := filepath.Join(p.Location.Checkout, "charts", "escache-csi", "values.yaml")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("images of the sidecars: %w", err)
	}
	type sidecar struct {
		Image struct{ Registry, Repository, Tag string }
	}
	var values struct {
		Sidecars struct{ Provisioner, Attacher, Resizer, Snapshotter sidecar }
	}
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("images of the sidecars in %s: %w", path, err)
	}
	var images []ociimage.Image
	for program, s := range map[string]sidecar{
		"csi-provisioner": values.Sidecars.Provisioner, "csi-attacher": values.Sidecars.Attacher, "csi-resizer": values.Sidecars.Resizer,
		"csi-snapshotter": values.Sidecars.Snapshotter,
	} {
		images = append(images, ociimage.Image{
			Ref:        fmt.Sprintf("%s/%s:%s", s.Image.Registry, s.Image.Repository, s.Image.Tag),
			Entrypoint: []string{"/" + program}, Files: []ociimage.File{{Path: "/" + program, Source: p.Tools[program]}},
		})
	}
	slices.SortFunc(images, func(a, b ociimage.Image) int { return strings.Compare(a.Ref, b.Ref) })
	return images, nil
}

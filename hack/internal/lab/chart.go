package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const (
	driverNamespace = "escache-system"
	chartRelease    = "escache"
)

// chartParts are what a lab takes from the chart. The pods are not among them: their programs are services of the hosts, and of the machine
// that the lab runs on, with exactly the rights of the chart's accounts.
var chartParts = []string{
	"templates/csidriver.yaml", "templates/controller/serviceaccount.yaml", "templates/controller/rbac.yaml", "templates/node/rbac.yaml",
}

// applyChart makes the driver's kinds, accounts and rights known to Kubernetes.
func (l *lab) applyChart(ctx context.Context) error {
	chart := filepath.Join(l.plan.Location.Checkout, "charts", "escache-csi")
	crds := filepath.Join(chart, "crds")
	if err := l.kubectl(ctx, nil, "apply", "--filename", crds); err != nil {
		return err
	}
	objects, err := l.renderChart(ctx, chart)
	if err != nil {
		return err
	}
	namespace := fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", driverNamespace)
	if err := l.kubectl(ctx, append([]byte(namespace), objects...), "apply", "--filename", "-"); err != nil {
		return err
	}
	return l.kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "--filename", crds)
}

func (l *lab) renderChart(ctx context.Context, chart string) ([]byte, error) {
	args := []string{
		"template", chartRelease, chart, "--namespace", driverNamespace,
		// None of these parts has them in it, and the chart has to be given some.
		"--set", "ceph.clusterID=lab,ceph.monitors={127.0.0.1}",
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

// account is a kubeconfig with the rights of one of the chart's service accounts ("controller", "node").
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

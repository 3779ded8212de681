package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/hostimage"
	"github.com/escache/escache-csi/test/internal/kubenode"
	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
	"github.com/escache/escache-csi/test/lab/labclient"
)

const (
	// kubernetesMemoryMiB is the least that a kubelet, containerd and a few pods work with.
	kubernetesMemoryMiB = 512
	// kubernetesCodeMiB is QEMU's room for translated code: with less it translates kubelet and
	// containerd again and again.
	kubernetesCodeMiB = 256
	// nodeReadyTime is for a kubelet on a loaded machine; alone it takes 10 s.
	nodeReadyTime = 5 * time.Minute
)

// centralTools are the programs of a Kubernetes lab that run beside the nodes.
func centralTools() []string {
	return slices.Concat(kubernetes.Programs(), kubernetes.SnapshotPrograms(), kubernetes.SidecarPrograms(), []string{"csi-sanity", "helm"})
}

// kubernetesFlavour builds all tools, those of the nodes into their image.
func (p *Plan) kubernetesFlavour(ctx context.Context, cache *buildcache.Cache, steps *progress.Printer) (hostimage.Flavour, error) {
	builder, err := toolbuilder.New(p.Location.Checkout, cache, steps)
	if err != nil {
		return hostimage.Flavour{}, err
	}
	if p.Tools, err = builder.Paths(ctx, centralTools()...); err != nil {
		return hostimage.Flavour{}, err
	}
	if p.Snapshots, err = builder.Module(ctx, "csi", kubernetes.SnapshotModule); err != nil {
		return hostimage.Flavour{}, err
	}
	onNodes, err := builder.Paths(ctx, kubenode.Programs()...)
	if err != nil {
		return hostimage.Flavour{}, err
	}
	pause := filepath.Join(p.Location.StateDir, "pause")
	if err := compile(ctx, p.Location.Checkout, program{source: "test/pause"}, pause); err != nil {
		return hostimage.Flavour{}, err
	}
	images := kubenode.Images{Pause: pause, Archives: p.Images}
	if len(p.Images) > 0 {
		if images.More, err = p.sidecarImages(); err != nil {
			return hostimage.Flavour{}, err
		}
	}
	return kubenode.Flavour(onNodes, images)
}

// kubeNode is a node as Kubernetes sees it.
func kubeNode(i int) kubenode.Node {
	return kubenode.Node{Name: nodeName(i), Address: dataAddress(i), PodNetwork: fmt.Sprintf("10.88.%d.0/24", i+1)}
}

func (l *lab) kubeNodes() []kubenode.Node {
	nodes := make([]kubenode.Node, len(l.nodes))
	for i := range l.nodes {
		nodes[i] = kubeNode(i)
	}
	return nodes
}

// prepareKubernetes makes keys, which nodes need to boot with, and the ways to Services and pods.
func (l *lab) prepareKubernetes(ctx context.Context) error {
	var script strings.Builder
	fmt.Fprintf(&script, "addr add %s/32 dev lo\n", kubernetes.ServiceAddress)
	for _, node := range l.kubeNodes() {
		fmt.Fprintf(&script, "route add %s via %s\n", node.PodNetwork, node.Address)
	}
	if err := feed(ctx, script.String(), "ip", "-batch", "-"); err != nil {
		return err
	}
	bin := l.path("bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"kubectl", "csi-sanity", "helm"} {
		if err := os.Symlink(l.plan.Tools[name], filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	var err error
	l.kube, err = kubernetes.Prepare(ctx, kubernetes.Config{
		Dir: l.path("kubernetes"), Address: CentralAddress, Programs: l.plan.Tools, Nodes: l.nodeNames(),
		Log: func(step string) { slog.Info("kubernetes", "step", step) },
	})
	return err
}

func (l *lab) startKubernetes(ctx context.Context, steps *progress.Printer) error {
	err := steps.Do("kubernetes", func() error {
		if err := l.kube.Start(ctx); err != nil {
			return err
		}
		return l.kube.StartSnapshots(ctx, kubernetes.SnapshotConfig{Module: l.plan.Snapshots, Programs: l.plan.Tools})
	})
	if err != nil || !l.plan.Driver {
		return err
	}
	return steps.Do("chart", func() error { return l.applyChart(ctx) }) // before the hosts' csi-nodes come and ask for something
}

// kubernetesFiles are the node's own, new at each boot.
func (n *node) kubernetesFiles() ([]file, error) {
	if n.lab.kube == nil {
		return nil, nil
	}
	self := kubeNode(n.index)
	identity, err := n.lab.kube.NodeIdentity(self.Name, self.Address)
	if err != nil {
		return nil, err
	}
	list, err := kubenode.Files(self, identity, CentralAddress, n.lab.kubeNodes())
	if err != nil {
		return nil, err
	}
	var files []file
	for _, f := range list {
		files = append(files, file{path: strings.TrimPrefix(f.Path, "/"), mode: int64(f.Mode), data: string(f.Content)})
	}
	if n.lab.plan.Driver {
		driver, err := n.csiNodeFiles()
		return append(files, driver...), err
	}
	return files, nil
}

// waitKubelet returns when the node, in its present boot, is Ready.
func (n *node) waitKubelet(ctx context.Context) error {
	if n.lab.kube == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodeReadyTime)
	defer cancel()
	boot, err := n.run(ctx, nil, "cat", "/proc/sys/kernel/random/boot_id")
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	err = n.lab.kube.WaitNode(ctx, n.name, strings.TrimSpace(boot))
	if err != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer stop()
		tail, _ := n.run(late, nil, "tail", "-n", "15", "/var/log/containerd.log", "/var/log/kubelet.log") // best effort: there may be none
		return fmt.Errorf("%w; the end of the logs there:\n%s", err, tail)
	}
	return nil
}

// controlPlane stops or starts the API server.
func (l *lab) apiServer(ctx context.Context, start bool) error {
	if l.kube == nil {
		return errors.New("this lab has no Kubernetes; start one with --kubernetes")
	}
	if start {
		return l.kube.StartAPIServer(ctx)
	}
	return l.kube.StopAPIServer(ctx)
}

// etcd saves or restores what Kubernetes has on record.
func (l *lab) etcd(ctx context.Context, act func(*kubernetes.ControlPlane, context.Context) error) error {
	if l.kube == nil {
		return errors.New("this lab has no Kubernetes; start one with --kubernetes")
	}
	return act(l.kube, ctx)
}

func (l *lab) kubernetesParts() []labclient.Part {
	if l.kube == nil {
		return nil
	}
	var parts []labclient.Part
	logs, ended := l.kube.Logs(), l.kube.Ended()
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		part := labclient.Part{Name: name, State: "up", Log: logs[name]}
		if ended[name] != nil {
			part.State = "ended"
		}
		if name == "kube-apiserver" {
			part.Address = l.kube.Server()
		}
		parts = append(parts, part)
	}
	return parts
}

// kubernetesEnvironment is added to what commands inside the lab get.
func (l *lab) kubernetesEnvironment(env map[string]string) {
	if l.kube == nil {
		return
	}
	env["KUBECONFIG"] = l.kube.Kubeconfig()
	env[labclient.EnvBin] = l.path("bin")
}

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/internal/microceph"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/lab/internal/arbiter"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// cephUser is the user of the nodes. It may do what RBD needs and nothing else.
const cephUser = "escache"

// lab is the running laboratory, inside the supervisor.
type lab struct {
	plan    Plan
	started time.Time
	ready   time.Duration
	down    chan struct{}
	endOnce sync.Once

	net     *network
	tls     *credentials
	records *arbiter.Store
	ceph    *microceph.Cluster       // nil in a lab without
	kube    *kubernetes.ControlPlane // nil in a lab without
	nodes   []*node

	// replicas of csi-controller, none in a lab without the driver.
	replicas []*replica

	mu      sync.Mutex
	stalled bool
	// keyring is the nodes' for Ceph, nil until there is one.
	keyring []byte
}

func newLab(plan Plan) *lab {
	l := &lab{plan: plan, started: plan.Begun, down: make(chan struct{}), net: &network{}}
	for i := range plan.Nodes {
		l.nodes = append(l.nodes, newNode(l, i))
	}
	return l
}

func (l *lab) path(parts ...string) string {
	return filepath.Join(append([]string{l.plan.Location.StateDir}, parts...)...)
}

// start returns when all of the lab is usable. What it has started when it fails is left to end.
func (l *lab) start(ctx context.Context, steps *progress.Printer) error {
	if err := os.MkdirAll(l.plan.Location.RunDir, 0o700); err != nil {
		return fmt.Errorf("directory for sockets: %w", err)
	}
	if err := steps.Do("network", func() error { return l.net.create(ctx, l.plan.Nodes) }); err != nil {
		return err
	}
	var err error
	if l.tls, err = newCredentials(l.path("tls"), l.nodes); err != nil {
		return err
	}
	if err := l.startArbiter(); err != nil {
		return err
	}
	if l.plan.Kubernetes {
		if err := l.prepareKubernetes(ctx); err != nil {
			return err
		}
	}
	group, groupCtx := errgroup.WithContext(ctx)
	if l.kube != nil {
		group.Go(func() error { return l.startKubernetes(groupCtx, steps) })
	}
	if !l.plan.NoCeph {
		group.Go(func() error { return l.startCeph(groupCtx, steps) })
	}
	for _, n := range l.nodes {
		group.Go(func() error {
			return steps.Do(n.name+": boot", func() error { return n.boot(groupCtx) })
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	group, groupCtx = errgroup.WithContext(ctx)
	for _, n := range l.nodes {
		group.Go(func() error {
			return steps.Do(n.name+": services", func() error { return n.serve(groupCtx) })
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if l.plan.Driver {
		if err := steps.Do("driver", func() error { return l.startDriver(ctx) }); err != nil {
			return err
		}
	}
	l.ready = time.Since(l.started)
	steps.Sayf("lab %q is up: %s", l.plan.Location.Name, strings.Join(l.nodeNames(), " "))
	return nil
}

func recordURL() string {
	return "http://" + net.JoinHostPort(CentralAddress, strconv.Itoa(ArbiterPort))
}

// startArbiter serves the arbiter record where the nodes can reach it.
func (l *lab) startArbiter() error {
	var err error
	if l.records, err = arbiter.Open(l.path("arbiter.json")); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(CentralAddress, strconv.Itoa(ArbiterPort)))
	if err != nil {
		return fmt.Errorf("arbiter: %w", err)
	}
	server := &http.Server{Handler: arbiter.Handler(l.records), ReadHeaderTimeout: 10 * time.Second}
	go func() { slog.Error("the arbiter ended", "error", server.Serve(listener)) }()
	return nil
}

func (l *lab) startCeph(ctx context.Context, steps *progress.Printer) error {
	end := steps.Step("ceph")
	cluster, err := microceph.Start(ctx, microceph.Config{
		Dir: l.path("ceph"), RunDir: filepath.Join(l.plan.Location.RunDir, "ceph"), Address: CentralAddress,
		Log: func(step string) { slog.Info("ceph", "step", step) },
	})
	if err == nil {
		err = l.addCephUser(ctx, cluster)
	}
	end(err)
	if err != nil {
		return fmt.Errorf("ceph: %w", err)
	}
	l.ceph = cluster
	return nil
}

func (l *lab) addCephUser(ctx context.Context, cluster *microceph.Cluster) error {
	path, err := cluster.CreateUser(ctx, "client."+cephUser, map[string]string{"mon": "profile rbd", "osd": "profile rbd"})
	if err != nil {
		return err
	}
	keyring, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("keyring of the nodes: %w", err)
	}
	l.mu.Lock()
	l.keyring = keyring
	l.mu.Unlock()
	return nil
}

// end kills everything in the lab's PID namespace but this process and the one above it. It is a
// power cut: nothing here is to be kept.
func (l *lab) end() {
	l.endOnce.Do(func() {
		_ = syscall.Kill(-1, syscall.SIGKILL) // no such process means that there is nothing to do
		for deadline := time.Now().Add(endTime / 2); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if len(others()) == 0 {
				return
			}
		}
		slog.Error("processes that SIGKILL does not end", "pids", others())
	})
}

// others are the processes of this PID namespace that are neither this one nor process 1.
func others() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && pid != 1 && pid != os.Getpid() && alive(pid) {
			found = append(found, pid)
		}
	}
	return found
}

func (l *lab) nodeNames() []string {
	var names []string
	for _, n := range l.nodes {
		names = append(names, n.name)
	}
	return names
}

func (l *lab) node(name string) (*node, error) {
	for _, n := range l.nodes {
		if n.name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q; there are %s", name, strings.Join(l.nodeNames(), ", "))
}

// stallCeph stops the OSD or lets it go on.
func (l *lab) stallCeph(ctx context.Context, stall bool) error {
	if l.ceph == nil {
		return errors.New("this lab has no Ceph")
	}
	act := l.ceph.Resume
	if stall {
		act = l.ceph.Stall
	}
	if err := act(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = stall
	return nil
}

func (l *lab) status() labclient.Status {
	status := labclient.Status{
		Name: l.plan.Location.Name, StateDir: l.plan.Location.StateDir, Started: l.started, Ready: l.ready,
		Parts: l.parts(), Environment: l.environment(),
	}
	for _, n := range l.nodes {
		status.Nodes = append(status.Nodes, n.status())
	}
	return status
}

func (l *lab) parts() []labclient.Part {
	parts := []labclient.Part{
		{Name: "supervisor", State: "up", Log: l.path(superLog)},
		{Name: "arbiter", State: "up", Address: fmt.Sprintf("%s:%d", CentralAddress, ArbiterPort)},
	}
	if l.ceph != nil {
		l.mu.Lock()
		stalled := l.stalled
		l.mu.Unlock()
		failed := l.ceph.Failed()
		logs := l.ceph.Logs()
		for _, name := range slices.Sorted(maps.Keys(logs)) {
			part := labclient.Part{Name: name, State: "up", Address: CentralAddress, Log: logs[name]}
			if failed != nil && strings.Contains(failed.Error(), name+" ended") {
				part.State = "ended"
			} else if stalled && strings.HasPrefix(name, "osd") {
				part.State = "stalled"
			}
			parts = append(parts, part)
		}
	}
	return slices.Concat(parts, l.kubernetesParts(), l.driverParts())
}

// environment is what a command inside the lab finds its way with.
func (l *lab) environment() map[string]string {
	env := map[string]string{
		labclient.EnvName:   l.plan.Location.Name,
		labclient.EnvSocket: l.plan.Location.Socket(),
		labclient.EnvState:  l.plan.Location.StateDir,
		"LAB_NODES":         strings.Join(l.nodeNames(), " "),
		"LAB_CA":            l.path("tls", caFile),
		"LAB_CLIENT_CERT":   l.path("tls", clientCertFile),
		"LAB_CLIENT_KEY":    l.path("tls", clientKeyFile),
		"LAB_OTHER_CERT":    l.path("tls", otherCertFile),
		"LAB_OTHER_KEY":     l.path("tls", otherKeyFile),
	}
	if l.ceph != nil {
		env["CEPH_CONF"] = l.ceph.Conf()
		env["LAB_CEPH_FSID"] = l.ceph.FSID()
	}
	l.kubernetesEnvironment(env)
	return env
}

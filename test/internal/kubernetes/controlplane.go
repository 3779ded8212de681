// Package kubernetes runs a real Kubernetes control plane (etcd, API server, controller manager,
// scheduler) and the CSI sidecars as children of the calling process, and writes the configuration
// that a node needs to join. Everything ends with that process.
package kubernetes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/test/internal/process"
	"github.com/escache/escache-csi/test/testca"
)

// ServiceAddress is where pods find the API server: the first address of the range of Services.
const ServiceAddress = "10.96.0.1"

const serviceRange = "10.96.0.0/16"

// Programs are the tools that Config.Programs has to hold.
func Programs() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// Config says where a control plane lives. Dir, Address and Programs are needed.
type Config struct {
	Dir      string            // holds everything: keys, kubeconfigs, etcd's data, logs
	Address  string            // an IP address of this machine or namespace, under which nodes reach the API server
	Port     int               // of the API server. 0: 443, which pods want (see ServiceAddress); on loopback a free one
	Programs map[string]string // paths by name

	// Nodes are the names of those that will join, if they are known.
	Nodes []string
	// NodeGrace is after how long without a sign of life a node is NotReady. 0: 10 s, Kubernetes'
	// own 50 s would make tests wait.
	NodeGrace time.Duration
	// APIServerArgs and ControllerManagerArgs are added as they are, e.g. for feature gates.
	APIServerArgs, ControllerManagerArgs []string
	// Log is told what is being done. Nil: nobody is.
	Log func(step string)
}

// ControlPlane is one that is prepared or runs. Its methods may be called from several goroutines.
type ControlPlane struct {
	cfg       Config
	authority *testca.Authority
	client    *http.Client // as admin
	ports     ports

	mu        sync.Mutex
	processes map[string]*process.Process // by name; the latest, running or not
}

type ports struct{ apiServer, etcdClient, etcdPeer, controllerManager, scheduler int }

// Prepare chooses ports and makes all keys, so that nodes can be prepared too; nothing runs yet.
func Prepare(ctx context.Context, cfg Config) (*ControlPlane, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{cfg: cfg, processes: map[string]*process.Process{}}
	for _, step := range []func() error{func() error { return c.choosePorts(ctx) }, c.preparePKI, c.prepareClient} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("prepare Kubernetes in %s: %w", cfg.Dir, err)
		}
	}
	return c, nil
}

// Start starts everything and returns when it serves: etcd healthy, API server ready, controllers
// and scheduler healthy, and the default service account there, without which no pod can be
// created. An error names the part and the end of its log; nothing is left running then.
func (c *ControlPlane) Start(ctx context.Context) error {
	if err := c.start(ctx); err != nil {
		return errors.Join(fmt.Errorf("start Kubernetes in %s: %w", c.cfg.Dir, err), c.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// Start prepares a control plane and starts it.
func Start(ctx context.Context, cfg Config) (*ControlPlane, error) {
	c, err := Prepare(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return c, c.Start(ctx)
}

func (cfg Config) withDefaults() (Config, error) {
	ip := net.ParseIP(cfg.Address)
	if cfg.Dir == "" || ip == nil {
		return cfg, fmt.Errorf("a control plane needs a directory and an IP address, not %q and %q", cfg.Dir, cfg.Address)
	}
	for _, name := range Programs() {
		if cfg.Programs[name] == "" {
			return cfg, fmt.Errorf("no path of %s given", name)
		}
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return cfg, err
	}
	cfg.Dir = dir
	if cfg.Port == 0 && !ip.IsLoopback() {
		cfg.Port = 443
	}
	if cfg.NodeGrace == 0 {
		cfg.NodeGrace = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = func(string) {}
	}
	return cfg, nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.path("admin.kubeconfig") }

// Server is the URL of the API server.
func (c *ControlPlane) Server() string {
	return "https://" + net.JoinHostPort(c.cfg.Address, fmt.Sprint(c.ports.apiServer))
}

// Logs gives the log file of each part by its name.
func (c *ControlPlane) Logs() map[string]string {
	logs := map[string]string{}
	for name, p := range c.started() {
		logs[name] = p.Log()
	}
	return logs
}

// Failed is nil while all parts run, and otherwise says which one has ended and why. An API server
// that was stopped on purpose counts as ended.
func (c *ControlPlane) Failed() error {
	return errors.Join(slices.Collect(maps.Values(c.Ended()))...)
}

// Ended holds, by its name, each part that has ended and why.
func (c *ControlPlane) Ended() map[string]error {
	ended := map[string]error{}
	for name, p := range c.started() {
		if err := p.Err(); err != nil {
			ended[name] = err
		}
	}
	return ended
}

// StopAPIServer ends the API server at once, as a crash would; the other parts go on and keep
// asking for it.
func (c *ControlPlane) StopAPIServer(context.Context) error {
	p := c.started()[apiServer]
	if p == nil {
		return errors.New("the API server was never started")
	}
	return p.Kill()
}

// StartAPIServer starts it again and returns when it is ready.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	if p := c.started()[apiServer]; p != nil && p.Err() == nil {
		return nil
	}
	return c.startAPIServer(ctx)
}

// Stop ends all parts at once: nothing of what they hold is kept. Logs stay in Dir.
func (c *ControlPlane) Stop(context.Context) error {
	var failed []error
	started := c.started()
	for _, name := range []string{snapshotController, scheduler, controllerManager, apiServer, etcd} {
		if p := started[name]; p != nil {
			failed = append(failed, p.Kill())
		}
	}
	c.client.CloseIdleConnections()
	return errors.Join(failed...)
}

// started holds the processes as they are now.
func (c *ControlPlane) started() map[string]*process.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.processes)
}

func (c *ControlPlane) path(parts ...string) string {
	return filepath.Join(append([]string{c.cfg.Dir}, parts...)...)
}

// preparePKI makes the authority and all that it signs for the control plane itself.
func (c *ControlPlane) preparePKI() error {
	dir := c.path("pki")
	// etcd refuses a data directory that others can read.
	for path, mode := range map[string]os.FileMode{dir: 0o755, c.path("log"): 0o755, c.path("etcd"): 0o700} {
		if err := os.MkdirAll(path, mode); err != nil {
			return err
		}
	}
	var err error
	if c.authority, err = testca.NewAuthority("lab"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), c.authority.Certificate(), 0o644); err != nil {
		return err
	}
	serving, err := c.authority.Server("kube-apiserver", c.cfg.Address, "127.0.0.1", ServiceAddress, "localhost",
		"kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	kubeletClient, err := c.authority.Client("kube-apiserver", "system:masters")
	if err != nil {
		return err
	}
	private, public, err := serviceAccountKey()
	if err != nil {
		return err
	}
	return errors.Join(
		writePair(dir, "apiserver", serving),
		writePair(dir, "apiserver-kubelet", kubeletClient),
		os.WriteFile(filepath.Join(dir, "sa.key"), private, 0o600),
		os.WriteFile(filepath.Join(dir, "sa.pub"), public, 0o644),
		c.writeKubeconfig(c.Kubeconfig(), "admin", "system:masters"),
		c.writeKubeconfig(c.path(controllerManager+".kubeconfig"), "system:kube-controller-manager"),
		c.writeKubeconfig(c.path(scheduler+".kubeconfig"), "system:kube-scheduler"),
	)
}

// prepareClient makes the client that asks for readiness and adds nodes, as admin. Each call's
// context has its deadline.
func (c *ControlPlane) prepareClient() error {
	admin, err := c.authority.Client("admin", "system:masters")
	if err != nil {
		return err
	}
	certificate, err := tls.X509KeyPair(admin.Certificate, admin.Key)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.authority.Certificate())
	c.client = &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
		}},
	}
	return nil
}

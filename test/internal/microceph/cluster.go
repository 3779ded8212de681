// Package microceph runs a minimal real Ceph as children of the calling process: one monitor, one
// manager and one OSD in memory, with cephx and both protocol versions. Everything ends with that
// process.
package microceph

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"github.com/escache/escache-csi/test/internal/process"
)

// Config says where a cluster lives. Only Dir and Address are needed.
type Config struct {
	Dir     string // holds everything: configuration, keyrings, logs. It must not hold another cluster
	RunDir  string // of the admin sockets, short (a socket's path has 108 characters at most). Empty: Dir/run
	Address string // an address of this machine, or of the network namespace the caller is in
	Port    int    // of the monitor's v1 protocol, v2 is one above. 0: 6789, and on loopback any two free ones

	// ProposeInterval is paxos_propose_interval: every change of the cluster's maps waits that long
	// for company. 0: Ceph's own second.
	ProposeInterval time.Duration
	// CapacityBytes is the size of the OSD's store; memory is taken only for what is written. 0: 4
	// GiB.
	CapacityBytes int64
	// Pools are made at start, ready for RBD. Nil: rbd and fast.
	Pools []string
	// Log is told what is being done. Nil: nobody is.
	Log func(step string)
}

// Cluster is a running Ceph. Its methods may be called from several goroutines, but not during
// Stop.
type Cluster struct {
	cfg  Config
	fsid string
	mon  monitorAddress

	daemons map[string]*process.Process // by Ceph's name: mon.a, mgr.x, osd.0
}

type monitorAddress struct{ v1, v2 int }

const (
	monitor = "mon.a"
	manager = "mgr.x"
	osd     = "osd.0"
)

// Start makes a cluster from nothing and returns when it serves: monitor in quorum, OSD active,
// manager available, pools there. An error names the daemon and the end of its log; nothing is left
// running then.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	mon, err := chooseMonitorPorts(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c := &Cluster{cfg: cfg, fsid: uuid.NewString(), mon: mon, daemons: map[string]*process.Process{}}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("start Ceph in %s: %w", cfg.Dir, err), c.Stop(context.WithoutCancel(ctx)))
	}
	return c, nil
}

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Dir == "" || net.ParseIP(cfg.Address) == nil {
		return cfg, fmt.Errorf("a cluster needs a directory and an IP address, not %q and %q", cfg.Dir, cfg.Address)
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return cfg, err
	}
	cfg.Dir = dir
	if cfg.RunDir == "" {
		cfg.RunDir = filepath.Join(cfg.Dir, "run")
	}
	if cfg.ProposeInterval == 0 {
		cfg.ProposeInterval = time.Second
	}
	if cfg.CapacityBytes == 0 {
		cfg.CapacityBytes = 4 << 30
	}
	if cfg.Pools == nil {
		cfg.Pools = []string{"rbd", "fast"}
	}
	if cfg.Log == nil {
		cfg.Log = func(string) {}
	}
	return cfg, nil
}

// chooseMonitorPorts finds two neighbouring ports. Only on loopback may others be in use: elsewhere
// the network namespace is the caller's own.
func chooseMonitorPorts(ctx context.Context, cfg Config) (monitorAddress, error) {
	if cfg.Port != 0 {
		return monitorAddress{v1: cfg.Port, v2: cfg.Port + 1}, nil
	}
	if !net.ParseIP(cfg.Address).IsLoopback() {
		return monitorAddress{v1: 6789, v2: 6790}, nil
	}
	var listen net.ListenConfig
	// The second port is free by luck, so the pair is tried for; 100 misses mean that something
	// else is wrong.
	for range 100 {
		first, err := listen.Listen(ctx, "tcp", net.JoinHostPort(cfg.Address, "0"))
		if err != nil {
			return monitorAddress{}, fmt.Errorf("find a port for the monitor: %w", err)
		}
		port := first.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
		second, err := listen.Listen(ctx, "tcp", net.JoinHostPort(cfg.Address, fmt.Sprint(port+1)))
		first.Close()
		if err == nil {
			second.Close()
			return monitorAddress{v1: port, v2: port + 1}, nil
		}
	}
	return monitorAddress{}, fmt.Errorf("no two neighbouring free ports on %s", cfg.Address)
}

// Conf is the path of ceph.conf: for CEPH_CONF, or `ceph -c`. Every user made by CreateUser works
// with it, as `--id NAME`.
func (c *Cluster) Conf() string { return c.path("ceph.conf") }

// AdminKeyring is the path of client.admin's keyring.
func (c *Cluster) AdminKeyring() string { return c.keyring("client.admin") }

// FSID identifies the cluster, which CSI calls clusterID.
func (c *Cluster) FSID() string { return c.fsid }

// MonitorV1 is the address of the old protocol, as krbd wants it: IP:PORT.
func (c *Cluster) MonitorV1() string { return net.JoinHostPort(c.cfg.Address, fmt.Sprint(c.mon.v1)) }

// Logs gives the log file of each daemon by its name; the file NAME.out beside it holds what the
// daemon wrote before its log was open.
func (c *Cluster) Logs() map[string]string {
	logs := map[string]string{}
	for name := range c.daemons {
		logs[name] = c.log(name)
	}
	return logs
}

// Stall freezes the OSD: reads and writes hang from now on, the monitor still answers.
func (c *Cluster) Stall(ctx context.Context) error { return c.daemons[osd].Pause(ctx) }

// Resume lets a stalled OSD go on with what it was doing.
func (c *Cluster) Resume(context.Context) error { return c.daemons[osd].Continue() }

// Failed is nil while all daemons run (or stand still), and otherwise says which one has ended and
// why.
func (c *Cluster) Failed() error {
	var failed []error
	for _, daemon := range c.daemons {
		failed = append(failed, daemon.Err())
	}
	return errors.Join(failed...)
}

// Stop ends all daemons at once, stalled or not: what they hold is thrown away with them. Logs stay
// in Dir.
func (c *Cluster) Stop(context.Context) error {
	var failed []error
	for _, name := range []string{osd, manager, monitor} {
		if daemon := c.daemons[name]; daemon != nil {
			failed = append(failed, daemon.Kill())
		}
	}
	return errors.Join(append(failed, os.RemoveAll(c.cfg.RunDir))...)
}

func (c *Cluster) path(parts ...string) string {
	return filepath.Join(append([]string{c.cfg.Dir}, parts...)...)
}

func (c *Cluster) keyring(entity string) string { return c.path(entity + ".keyring") }
func (c *Cluster) log(daemon string) string     { return c.path("log", daemon+".log") }
func (c *Cluster) adminSocket(daemon string) string {
	return filepath.Join(c.cfg.RunDir, daemon+".asok")
}

package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache"
	logengine "github.com/escache/escache-csi/internal/escached/cache/log/engine"
	"github.com/escache/escache-csi/internal/escached/cache/log/launch"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/cache/writecache/loop"
	"github.com/escache/escache-csi/internal/escached/child"
	"github.com/escache/escache-csi/internal/escached/deviceusers"
	"github.com/escache/escache-csi/internal/escached/devmapper"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/engine"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/kernel"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/memory"
	"github.com/escache/escache-csi/internal/escached/trim"
)

// newEngine wires an engine to the real layers of this host. configPath is the configuration file
// that DRBD's handlers will read.
func newEngine(cfg escached.Config, version, configPath string, log *slog.Logger) (*engine.Engine, error) {
	uname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("this host's name: %w", err)
	}
	handlers, err := handlerLines(configPath)
	if err != nil {
		return nil, err
	}
	files := escacheclient.TLSFiles{Cert: cfg.TLS.Cert, Key: cfg.TLS.Key, CA: cfg.TLS.ClientCA}
	records, err := escacheclient.NewArbiter(cfg.Arbiter, files, cfg.ArbiterTimeout)
	if err != nil {
		return nil, err
	}
	l, err := layersOf(cfg)
	if err != nil {
		return nil, err
	}
	if err := l.run.Inherit(filepath.Join(cfg.RunDir, "children")); err != nil {
		return nil, err
	}
	return engine.New(host.New(cfg, uname, handlers, host.Layers{
		Store: l.store, Replicator: l.control, Resources: l.resources, States: l.states, Records: records, Images: l.images,
		Caches: cache.Engines{escache.EngineWritecache: l.standard, escache.EngineLog: l.log}, Kernel: l.kernel,
		Trimmer: trim.NewClient(l.run), Memory: memory.Proc{Path: "/proc"}, KillUsers: deviceusers.Kill, Stuck: l.run.Stuck,
		Listens: listens,
	}), version, log), nil
}

// listenLimit bounds the question whether something listens. The peer is on the same network.
const listenLimit = time.Second

// listens returns nil if something takes connections at an address.
func listens(ctx context.Context, address string) error {
	dialer := net.Dialer{Timeout: listenLimit}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// layers are those of this host.
type layers struct {
	run       *command.Exec
	store     *lvm.Group
	resources drbd.Files
	control   *drbd.Control
	states    drbd.Proc
	images    *krbd.Client
	standard  *writecache.Engine
	log       *logengine.Engine
	kernel    *kernel.Kernel
}

func layersOf(cfg escached.Config) (layers, error) {
	l := layers{run: command.NewExec(), resources: drbd.Files{Dir: cfg.DRBD.ResourceDir}, states: drbd.Proc{Path: "/proc/drbd"}}
	children := child.NewClient(l.run)
	l.store, l.control = lvm.New(cfg.VolumeGroup, l.run), drbd.NewControl(l.run, l.resources)
	l.images = krbd.New(krbd.Config{Conf: cfg.Ceph.Conf, Keyring: cfg.Ceph.Keyring, User: cfg.Ceph.User, Sys: "/sys"}, children)
	mapper := devmapper.New(l.run)
	l.standard = writecache.New(mapper, loop.New(l.run), children)
	var err error
	if l.log, err = newLog(cfg, mapper, children); err != nil {
		return layers{}, err
	}
	l.kernel = kernel.New(l.run, l.states, l.images, l.standard, l.log)
	return l, nil
}

// newLog returns the cache engine that is opt-in.
func newLog(cfg escached.Config, mapper *devmapper.Mapper, children *child.Client) (*logengine.Engine, error) {
	program, err := launch.Beside()
	if err != nil {
		return nil, err
	}
	boot, err := logengine.Boot()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.RunDir, "log")
	return logengine.New(logengine.Config{
		Mapper: mapper, Disks: children, Processes: launch.Launcher{Binary: program, Logs: dir},
		Kernel: logengine.HostKernel{Program: program}, Dir: dir, Boot: boot,
	}), nil
}

// handlerLines returns the command lines of DRBD's handlers for the resource files. drbdadm passes
// them to a shell, so paths with characters that are special there are refused.
func handlerLines(configPath string) (host.Handlers, error) {
	self, err := os.Executable()
	if err != nil {
		return host.Handlers{}, fmt.Errorf("path of this program: %w", err)
	}
	config, err := filepath.Abs(configPath)
	if err != nil {
		return host.Handlers{}, fmt.Errorf("path of the configuration: %w", err)
	}
	for _, path := range []string{self, config} {
		if strings.ContainsFunc(path, func(r rune) bool {
			return !strings.ContainsRune("/._-+", r) && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}) {
			return host.Handlers{}, fmt.Errorf("%q: DRBD passes this path to a shell; use a path of letters, digits and /._-+ only", path)
		}
	}
	return host.Handlers{FencePeer: self + " fence-peer --config " + config, DiskFailed: self + " disk-failed --config " + config}, nil
}

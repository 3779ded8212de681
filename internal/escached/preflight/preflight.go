// Package preflight checks whether a host is ready for escached, before escached runs there or beside it.
// It changes nothing, except that it loads the kernel modules that escached needs, as escached does when
// it starts.
package preflight

import (
	"context"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/kernel"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// Settings say what is checked.
type Settings struct {
	// Config is what escached runs with.
	Config escached.Config
	// ConfigPath is the file that Config is from, and ConfigErr why it could not be read: Config then has
	// the defaults. ConfigNamed means that the user has named the file.
	ConfigPath  string
	ConfigErr   error
	ConfigNamed bool
	// CephNamed means that the user has named Ceph's files.
	CephNamed bool
	// Pool is the Ceph pool of the volumes; empty: the pool is not checked.
	Pool string
	// ServerName is the name that csi-controller expects in the certificate, in which {node} stands for
	// this host's name. Empty: any name of this host will do.
	ServerName string
	// Peers are the replication addresses of other hosts.
	Peers []string
}

// Host is the host that is checked, with the layers that know its parts.
type Host struct {
	Settings

	// Uname is this host's name as `uname -n` prints it.
	Uname  string
	Kernel kernelParts
	Store  store
	Tools  replicationTools
	Images images
	System System
}

// These layers know their part of the host.
type (
	kernelParts interface {
		Modules(ctx context.Context) []kernel.Module
		Describe(ctx context.Context) (found escache.Kernel, missing []string)
	}
	store interface {
		Version(ctx context.Context) (string, error)
		Space(ctx context.Context) (lvm.Space, error)
		Volumes(ctx context.Context, readOnly bool) ([]lvm.Volume, error)
	}
	// replicationTools are drbd-utils.
	replicationTools interface {
		Version(ctx context.Context) (string, error)
	}
	// images is krbd.
	images interface {
		Available() bool
		Monitors(ctx context.Context) ([]string, error)
		Silent(ctx context.Context, mons []string) []string
		Reach(ctx context.Context, pool string) error
	}
)

// System is what the checks read without a layer.
type System struct {
	// Root is where the host's files are, "/" but in tests.
	Root string
	// LookPath finds a program.
	LookPath func(name string) (string, error)
	// Addresses are the IP addresses of the host's interfaces, without masks.
	Addresses func() ([]string, error)
	// Clock reads the kernel's clock, like unix.Adjtimex.
	Clock func(*unix.Timex) (state int, err error)
	// Filesystem returns the type of the filesystem of a path that exists, as statfs has it.
	Filesystem func(path string) (int64, error)
	// Dial connects to an address from a local one, which may be empty, and hangs up.
	Dial func(ctx context.Context, from, address string) error
	Now  func() time.Time
}

func (s System) path(path string) string { return filepath.Join(s.Root, path) }

// cephTimeout is longer than krbd may take to map and to unmap an image.
const cephTimeout = 90 * time.Second

// modulesTimeout bounds loading all modules.
const modulesTimeout = 90 * time.Second

// Checks returns the checks of a host. Their order matters: the first ones load the kernel modules.
func (h *Host) Checks() []checklist.Check {
	return []checklist.Check{
		checklist.One("configuration", h.configuration),
		checklist.One("name", h.name),
		checklist.One("programs", h.programs),
		{Name: "modules", Timeout: modulesTimeout, Run: h.modules},
		checklist.One("kernel", h.release),
		checklist.One("LVM", h.lvmVersion),
		checklist.One("drbd-utils", h.drbdVersion),
		checklist.One("DRBD's helper", h.helper),
		checklist.One("DRBD's configuration", h.drbdConf),
		checklist.One("volume group", h.volumeGroup),
		checklist.One("memory", h.memory),
		checklist.One("replication address", h.address),
		checklist.One("replication ports", h.replicationPorts),
		{Name: "links", Timeout: peersTimeout, Run: h.peers},
		checklist.One("API port", h.apiPort),
		checklist.One("clock", h.clock),
		{Name: "directories", Run: h.directories},
		{Name: "certificates", Run: h.certificates},
		checklist.One("Ceph monitors", h.monitors),
		{Name: "Ceph pool", Timeout: cephTimeout, Run: func(ctx context.Context) []checklist.Result {
			return []checklist.Result{h.pool(ctx)}
		}},
	}
}

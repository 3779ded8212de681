package preflight

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/kernel"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/test/testca"
)

// played is a host of which every part is played, but for the files below its root.
type played struct {
	*Host

	t         *testing.T
	found     escache.Kernel
	modules   map[string]error
	space     lvm.Space
	spaceErr  error
	replicas  []lvm.Volume
	versions  [2]string // LVM, drbd-utils
	rbd       bool
	mons      []string
	monsErr   error
	silent    []string
	reach     error
	programs  []string // not installed
	addresses []string
	clock     unix.Timex
	memory    []string         // directories in memory
	dialled   map[string]error // by address and port; all others are refused
	authority *testca.Authority
}

func (p *played) Modules(context.Context) []kernel.Module {
	var all []kernel.Module
	for _, name := range []string{"drbd", "dm-writecache", "loop", "rbd"} {
		all = append(all, kernel.Module{Name: name, Err: p.modules[name]})
	}
	return all
}
func (p *played) Describe(context.Context) (escache.Kernel, []string) { return p.found, nil }
func (p *played) Version(context.Context) (string, error)             { return p.versions[0], nil }
func (p *played) Space(context.Context) (lvm.Space, error)            { return p.space, p.spaceErr }
func (p *played) Volumes(context.Context, bool) ([]lvm.Volume, error) { return p.replicas, nil }
func (p *played) Available() bool                                     { return p.rbd }
func (p *played) Monitors(context.Context) ([]string, error)          { return p.mons, p.monsErr }
func (p *played) Silent(context.Context, []string) []string           { return p.silent }
func (p *played) Reach(context.Context, string) error                 { return p.reach }

type tools struct{ version string }

func (t tools) Version(context.Context) (string, error) {
	if t.version == "" {
		return "", errors.New("start drbdadm (is its package installed?)")
	}
	return t.version, nil
}

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

const tcpHead = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

// tcp is a line of /proc/net/tcp of a socket that listens.
func tcp(port int, inode string) string {
	return fmt.Sprintf("   2: 00000000:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 %s 1 00000000d4cc82f4 100 0 0 10 0\n", port, inode)
}

// ready returns a host with which all is well: with a replica, and with escached running.
func ready(t *testing.T) *played {
	t.Helper()
	cfg := escached.DefaultConfig()
	cfg.Node, cfg.Address, cfg.Listen = "n1", "10.0.0.11", "10.1.0.11:7443"
	dir := t.TempDir()
	cfg.TLS.Cert, cfg.TLS.Key, cfg.TLS.ClientCA = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, "ca.crt")
	v := volume.Volume{
		VolumeRef: escache.VolumeRef{Pool: "fast", Image: "escache-a"}, Port: 7801, Minor: 101, Phase: volume.Ready, Engine: escache.EngineWritecache,
		Self: escache.ReplicaNode{Name: "n1", Address: "10.0.0.11"}, Peer: escache.ReplicaNode{Name: "n2", Address: "10.0.0.12"},
	}
	p := &played{
		t: t, found: escache.Kernel{Release: "6.1.0-25-amd64", DRBD: "8.4.11", Writecache: "1.6.0", RBD: true}, rbd: true,
		space:    lvm.Space{GroupID: "abc-def", Capacity: 100 << 30, Free: 90 << 30, Extent: 4 << 20},
		replicas: []lvm.Volume{{Name: v.Name(), Tags: v.Tags()}}, versions: [2]string{"2.03.16", "9.22.0"},
		mons: []string{"10.2.0.1:6789", "10.2.0.2:6789"}, addresses: []string{"127.0.0.1", "10.0.0.11", "10.1.0.11"},
		memory: []string{"/run"}, clock: unix.Timex{Maxerror: 12000},
	}
	p.Host = &Host{
		Settings: Settings{Config: cfg, ConfigPath: "/etc/escache/escached.yaml", Pool: "fast", Peers: []string{"10.0.0.12"}},
		Uname:    "n1", Kernel: p, Store: p, Tools: tools{p.versions[1]}, Images: p,
		System: System{
			Root: t.TempDir(), Now: func() time.Time { return noon }, Addresses: func() ([]string, error) { return p.addresses, nil },
			LookPath: func(name string) (string, error) {
				if slices.Contains(p.programs, name) {
					return "", errors.New("not found")
				}
				return "/sbin/" + name, nil
			},
			Dial: func(_ context.Context, from, address string) error {
				if err, known := p.dialled[address]; known || from != p.Config.Address {
					return err
				}
				return syscall.ECONNREFUSED
			},
			Clock: func(to *unix.Timex) (int, error) {
				*to = p.clock
				return unix.TIME_OK, nil
			},
			Filesystem: func(path string) (int64, error) {
				path, _ = strings.CutPrefix(path, p.System.Root)
				switch {
				case path != "" && path != "/run" && path != "/var":
					return 0, fs.ErrNotExist
				case slices.Contains(p.memory, path):
					return unix.TMPFS_MAGIC, nil
				}
				return unix.EXT4_SUPER_MAGIC, nil
			},
		},
	}
	p.file("/proc/meminfo", "MemTotal:       65804172 kB\nMemFree:         1 kB\n")
	p.file("/proc/net/tcp", tcpHead+tcp(22, "900")+tcp(7801, "31234")+tcp(7443, "1060"))
	p.file("/proc/net/tcp6", tcpHead)
	p.process(812, "escached", "1060")
	p.file("/sys/module/drbd/parameters/usermode_helper", "/sbin/drbdadm\n")
	p.file("/sbin/drbdadm", "#!")
	p.file("/etc/drbd.conf", "include \"drbd.d/global_common.conf\";\ninclude \"drbd.d/*.res\";\n")
	var err error
	if p.authority, err = testca.NewAuthority("hosts"); err != nil {
		t.Fatal(err)
	}
	p.certificate("n1.escached.escache.io")
	return p
}

func (p *played) file(path, text string) {
	p.t.Helper()
	path = p.System.path(path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
		p.t.Fatal(err)
	}
}

// process is a program that has a socket.
func (p *played) process(pid int, name, inode string) {
	p.t.Helper()
	dir := fmt.Sprintf("/proc/%d", pid)
	p.file(dir+"/comm", name+"\n")
	fds := p.System.path(dir + "/fd")
	if err := errors.Join(os.MkdirAll(fds, 0o755), os.Symlink("socket:["+inode+"]", filepath.Join(fds, "7"))); err != nil {
		p.t.Fatal(err)
	}
}

// certificate gives the host a certificate of a name, valid for a year at noon, after each change.
func (p *played) certificate(name string, change ...func(*x509.Certificate)) {
	p.t.Helper()
	change = append([]func(*x509.Certificate){func(c *x509.Certificate) {
		c.DNSNames, c.IPAddresses, c.NotBefore, c.NotAfter = []string{name}, nil, noon.AddDate(0, -1, 0), noon.AddDate(1, 0, 0)
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	}}, change...)
	pair, err := p.authority.Issue("n1", change...)
	p.write(err, p.Config.TLS.Cert, pair.Certificate)
	p.write(err, p.Config.TLS.Key, pair.Key)
	p.clientsAuthority(noon.AddDate(10, 0, 0))
}

// clientsAuthority is one that ends then.
func (p *played) clientsAuthority(end time.Time) {
	p.t.Helper()
	pair, err := p.authority.Issue("clients", func(c *x509.Certificate) { c.NotBefore, c.NotAfter = noon.AddDate(-1, 0, 0), end })
	p.write(err, p.Config.TLS.ClientCA, pair.Certificate)
}

func (p *played) write(err error, path string, data []byte) {
	p.t.Helper()
	if err := errors.Join(err, os.WriteFile(path, data, 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *played) results() []checklist.Result { return checklist.Run(p.t.Context(), p.Checks()) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

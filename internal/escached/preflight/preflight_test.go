package preflight

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
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
	"github.com/escache/escache-csi/internal/escached/krbd"
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

func TestAHostThatIsReadyPassesEveryCheck(t *testing.T) {
	results := ready(t).results()
	for _, r := range results {
		if r.State != checklist.OK || r.Found == "" || r.Remedy != "" {
			t.Errorf("%+v", r)
		}
	}
	if len(results) != 25 {
		t.Errorf("%d checks", len(results))
	}
	if !slices.ContainsFunc(results, func(r checklist.Result) bool {
		return r.Check == "API port" && strings.Contains(r.Found, "escached listens on 10.1.0.11:7443 (process 812)")
	}) {
		t.Errorf("%+v", results)
	}
}

// TestWhatIsWrongIsNamedWithARemedy breaks one thing at a time. No other check may suffer, unless it is
// named.
func TestWhatIsWrongIsNamedWithARemedy(t *testing.T) {
	const failed, warning, unknown = checklist.Failed, checklist.Warning, checklist.Unknown
	for name, c := range map[string]struct {
		spoil       func(*played)
		check       string
		state       checklist.State
		found, todo string
		also        []string
	}{
		"wrong configuration":  {func(p *played) { p.Config.Wipe = "all" }, "configuration", failed, `wipe: "all"`, "correct /etc/escache", nil},
		"broken configuration": {func(p *played) { p.ConfigErr = errors.New("yaml: line 3") }, "configuration", failed, "line 3", "--config", nil},
		"named configuration that is missing": {
			func(p *played) { p.ConfigErr, p.ConfigNamed = fs.ErrNotExist, true }, "configuration", failed, "not exist", "--config", nil,
		},
		"no configuration": {func(p *played) { p.ConfigErr = fs.ErrNotExist }, "configuration", warning, "the defaults are checked", "nothing", nil},
		"another name": {
			func(p *played) { p.Uname = "host-1.example" }, "name", failed, `node is "n1", and uname -n prints "host-1.example"`,
			"hostnamectl set-hostname n1", nil,
		},
		"a program is missing": {func(p *played) { p.programs = []string{"blkdiscard", "modprobe"} }, "programs", failed,
			"modprobe, blkdiscard", "kmod, util-linux", nil},
		"a module is missing": {
			func(p *played) {
				p.modules = map[string]error{"dm-writecache": errors.New("not found in /lib/modules")}
			},
			"module dm-writecache", failed, "not found in /lib/modules", "modprobe dm-writecache", nil,
		},
		"DRBD 9":                 {func(p *played) { p.found.DRBD = "9.2.8" }, "module drbd", failed, "version 9.2.8; only 8.4", "drbd-dkms", nil},
		"DRBD without a version": {func(p *played) { p.found.DRBD = "" }, "module drbd", failed, "does not tell", "dmesg", nil},
		"old kernel":             {func(p *played) { p.found.Release = "5.14.0-503.el9.x86_64" }, "kernel", warning, "before 5.15", "support.md", nil},
		"old LVM":                {func(p *played) { p.versions[0] = "2.02.187" }, "LVM", warning, "before 2.3", "support.md", nil},
		"old drbd-utils":         {func(p *played) { p.Tools = tools{"8.9.10"} }, "drbd-utils", warning, "before 9.0", "support.md", nil},
		"no drbd-utils":          {func(p *played) { p.Tools = tools{} }, "drbd-utils", failed, "start drbdadm", "install", nil},
		"another helper": {
			func(p *played) { p.file("/sys/module/drbd/parameters/usermode_helper", "disabled\n") }, "DRBD's helper", failed,
			`runs "disabled"`, "usermode_helper=/sbin/drbdadm", nil,
		},
		"a helper that is missing": {
			func(p *played) { p.file("/sys/module/drbd/parameters/usermode_helper", "/usr/bin/drbdadm\n") }, "DRBD's helper", failed,
			"/usr/bin/drbdadm when a peer is lost, and there is none", "install drbd-utils", nil,
		},
		"a helper that is not executable": {
			func(p *played) { must(p.t, os.Chmod(p.System.path("/sbin/drbdadm"), 0o644)) }, "DRBD's helper", failed, "not executable", "chmod +x", nil,
		},
		"no DRBD, no helper": {
			func(p *played) { must(p.t, os.RemoveAll(p.System.path("/sys/module/drbd"))) }, "DRBD's helper", unknown, "not loaded", "load", nil,
		},
		"no drbd.conf": {func(p *played) { must(p.t, os.Remove(p.System.path("/etc/drbd.conf"))) }, "DRBD's configuration", failed,
			"no such file", "install drbd-utils", nil},
		"resources are not included": {func(p *played) { p.file("/etc/drbd.conf", "include \"drbd.d/global_common.conf\";\n") },
			"DRBD's configuration", failed, "does not include /etc/drbd.d/*.res", `include "/etc/drbd.d/*.res";`, nil},
		"no volume group": {func(p *played) { p.spaceErr = lvm.ErrNoGroup }, "volume group", failed, "no volume group escache",
			"vgcreate escache", []string{"memory"}},
		"LVM fails":         {func(p *played) { p.spaceErr = errors.New("lvm: exit 5") }, "volume group", failed, "exit 5", "vgs escache", []string{"memory"}},
		"full volume group": {func(p *played) { p.space.Free = 1 << 20 }, "volume group", warning, "0.0 GiB free of 100.0 GiB", "vgextend", nil},
		"little memory":     {func(p *played) { p.file("/proc/meminfo", "MemTotal: 3145728 kB\n") }, "memory", warning, "keeps 2.0 GiB", "sizing.md", nil},
		"memory unreadable": {func(p *played) { p.file("/proc/meminfo", "MemFree: 1 kB\n") }, "memory", unknown, "no MemTotal", "by hand", nil},
		"another host's address": {func(p *played) { p.Config.Address = "10.0.0.99" }, "replication address", failed,
			"no interface has 10.0.0.99; this host has 127.0.0.1, 10.0.0.11", "escached.addresses", nil},
		"loopback": {func(p *played) { p.Config.Address = "127.0.0.1" }, "replication address", failed, "other hosts do not reach it",
			"replication network", nil},
		"no address": {func(p *played) { p.Config.Address, p.ConfigErr = "", fs.ErrNotExist }, "replication address", unknown, "not checked",
			"--address", []string{"configuration"}},
		"a port of replication is taken": {func(p *played) {
			p.file("/proc/net/tcp6", tcpHead+"   0: 00000000000000000000000000000000:1EDC "+
				"00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 55 1 0 100 0 0 10 0\n")
			p.process(99, "prometheus", "55")
		}, "replication ports", failed, "7900 (prometheus, process 99)", "escached.drbd.ports", nil},
		"the port of a replica is taken": {func(p *played) {
			p.process(99, "prometheus", "31234")
		}, "replication ports", failed, "within 7800-8799: 7801 (prometheus, process 99)", "escached.drbd.ports", nil},
		"a firewall": {func(p *played) {
			p.dialled = map[string]error{"10.0.0.12:7800": nil, "10.0.0.12:8799": context.DeadlineExceeded}
		}, "link to 10.0.0.12", failed, "no answer on port 8799", "open TCP 7800-8799", nil},
		"no peers":              {func(p *played) { p.Peers = nil }, "links", unknown, "no other host is named", "--peer", nil},
		"a stranger's resource": {func(p *played) { p.replicas = nil }, "replication ports", failed, "7801 (no process", "drbd.ports", nil},
		"sockets unreadable": {func(p *played) { p.file("/proc/net/tcp", tcpHead+"nonsense\n") }, "replication ports", failed, "nonsense",
			"ss -ltn", []string{"API port"}},
		"the API's port is taken": {func(p *played) { p.process(700, "nginx", "900"); p.Config.Listen = "0.0.0.0:22" }, "API port", failed,
			"22 (nginx, process 700)", "escached.port", nil},
		"the API on another host's address": {func(p *played) { p.Config.Listen = "10.9.9.9:7443" }, "API port", failed, "no interface has 10.9.9.9",
			"0.0.0.0:7443", nil},
		"no API":           {func(p *played) { p.Config.Listen = "" }, "API port", warning, "cannot call this host", "listen", nil},
		"no clock service": {func(p *played) { p.clock = unix.Timex{Status: unix.STA_UNSYNC} }, "clock", warning, "nothing synchronises", "chrony", nil},
		"bad clock":        {func(p *played) { p.clock.Maxerror = 3_000_000 }, "clock", warning, "up to 3s off", "chrony", nil},
		"state in memory":  {func(p *played) { p.memory = append(p.memory, "/var") }, "stateDir", failed, "would lose the secrets", "root disk", nil},
		"run on a disk":    {func(p *played) { p.memory = nil }, "runDir", warning, "/run/escache is on a disk", "below /run", nil},
		"no certificate":   {func(p *played) { must(p.t, os.Remove(p.Config.TLS.Cert)) }, "certificate", failed, "no such file", "security.md", nil},
		"a certificate that has ended": {func(p *played) {
			p.certificate("n1.x", func(c *x509.Certificate) { c.NotAfter = noon.AddDate(0, 0, -1) })
		}, "certificate", failed, "it ended 2027-02-28 12:00 UTC", "csi-node", nil},
		"a certificate that ends": {func(p *played) {
			p.certificate("n1.x", func(c *x509.Certificate) { c.NotAfter = noon.AddDate(0, 0, 3) })
		}, "certificate", warning, "it ends 2027-03-04", "csi-node", nil},
		"a certificate of the future": {func(p *played) {
			p.certificate("n1.x", func(c *x509.Certificate) { c.NotBefore = noon.AddDate(0, 0, 1) })
		}, "certificate", failed, "not valid before 2027-03-02", "clock", nil},
		"a certificate for clients": {func(p *played) {
			p.certificate("n1.x", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
		}, "certificate", failed, "not for servers", "serverAuth", nil},
		"another host's certificate": {func(p *played) { p.certificate("n2.escached.escache.io") }, "certificate", warning,
			"no name begins with n1", "--server-name", nil},
		"not the name that is expected": {func(p *played) { p.ServerName = "{node}.example" }, "certificate", failed, "and not for n1.example",
			"tls.serverName", nil},
		"the clients' authority has ended": {func(p *played) { p.clientsAuthority(noon.AddDate(0, 0, -2)) }, "authority of clients", failed,
			"it ended", "present certificate", nil},
		"no authority of clients": {func(p *played) { p.write(nil, p.Config.TLS.ClientCA, nil) }, "authority of clients", failed, "no certificate",
			"security.md", nil},
		"no ceph.conf": {func(p *played) { p.monsErr = fmt.Errorf("%w: no such file", krbd.ErrConfig) }, "Ceph monitors", failed, "incomplete",
			"ceph.conf", nil},
		"no monitor answers":  {func(p *played) { p.silent = p.mons }, "Ceph monitors", failed, "none answers: 10.2.0.1:6789", "v1 addresses", nil},
		"a monitor is silent": {func(p *played) { p.silent = p.mons[1:] }, "Ceph monitors", warning, "1 of 2 do not answer: 10.2.0.2:6789", "firewall", nil},
		"no pool is named":    {func(p *played) { p.Pool = "" }, "Ceph pool", unknown, "no pool is named", "--pool", nil},
		"no rbd":              {func(p *played) { p.rbd = false }, "Ceph pool", unknown, "the kernel has no rbd", "module rbd", nil},
		"no such pool":        {func(p *played) { p.reach = krbd.ErrNoPool }, "Ceph pool", failed, "no pool fast", "ceph osd pool create fast", nil},
		"pool not known":      {func(p *played) { p.reach = krbd.ErrNotFound }, "Ceph pool", unknown, "is not known", "ceph osd pool ls", nil},
		"no caps": {func(p *played) { p.reach = krbd.ErrRefused }, "Ceph pool", failed, "Ceph refuses", "ceph auth caps client.admin mon 'profile rbd'",
			nil},
		"no key":         {func(p *played) { p.reach = krbd.ErrConfig }, "Ceph pool", failed, "incomplete", "ceph.keyring", nil},
		"no Ceph":        {func(p *played) { p.reach = krbd.ErrUnavailable }, "Ceph pool", failed, "does not answer", "ceph -s", nil},
		"something else": {func(p *played) { p.reach = unix.EINVAL }, "Ceph pool", failed, "invalid argument", "dmesg", nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := ready(t)
			c.spoil(p)
			seen := false
			for _, r := range p.results() {
				switch {
				case r.Check == c.check:
					seen = true
					if r.State != c.state || !strings.Contains(r.Found, c.found) || !strings.Contains(r.Remedy, c.todo) {
						t.Errorf("%+v", r)
					}
				case r.State != checklist.OK && !slices.Contains(c.also, r.Check):
					t.Errorf("this is not wrong: %+v", r)
				}
			}
			if !seen {
				t.Errorf("no check %q", c.check)
			}
		})
	}
}

func TestABareHostLacksOnlyWhatNobodyHasNamed(t *testing.T) {
	p := ready(t)
	p.ConfigErr = fs.ErrNotExist
	p.Config = escached.DefaultConfig()
	p.Config.Node = p.Uname
	p.Pool, p.Peers = "", nil
	p.monsErr = fmt.Errorf("%w: %w", krbd.ErrConfig, fs.ErrNotExist)
	states := map[string]checklist.State{}
	for _, r := range p.results() {
		states[r.Check] = r.State
	}
	for _, name := range []string{"replication address", "links", "API port", "certificate", "Ceph monitors", "Ceph pool"} {
		if states[name] != checklist.Unknown {
			t.Errorf("%s: %s", name, states[name])
		}
		delete(states, name)
	}
	for name, state := range states {
		if state != checklist.OK && name != "configuration" {
			t.Errorf("%s: %s", name, state)
		}
	}
	p.CephNamed = true
	if r := p.monitors(t.Context()); r.State != checklist.Failed {
		t.Errorf("a file that was named and is missing: %+v", r)
	}
}

// What Linux 6.1 shows: one socket listens, one is connected.
const procTCP = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                                                     
   0: 0B01007F:A095 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 95621 2 000000008b3023b3 100 0 0 10 0                     
   1: 0100007F:1E78 0100007F:A095 01 00000000:00000000 00:00000000 00000000     0        0 95627 2 0000000060873df1 100 0 0 10 0                     
`

func TestOnlySocketsThatListenCount(t *testing.T) {
	got, err := parseSockets(strings.NewReader(procTCP))
	if want := []socket{{0xA095, "95621"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{tcpHead + "x\n", tcpHead + strings.Replace(tcp(22, "1"), "0016", "zz", 1), tcpHead + strings.Replace(tcp(22, "1"), ":0016", "", 1)} {
		if got, err := parseSockets(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestTheNameThatIsExpectedMayHaveTheHostsInIt(t *testing.T) {
	p := ready(t)
	for pattern, want := range map[string]checklist.State{
		"{node}.escached.escache.io": checklist.OK, "n1.escached.escache.io": checklist.OK, "escached.escache.io": checklist.Failed,
	} {
		p.ServerName = pattern
		if r := p.certificates(t.Context())[0]; r.State != want {
			t.Errorf("%s: %+v", pattern, r)
		}
	}
}

func TestDialTellsAPortNobodyListensOnFromSilence(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	if err := Dial(t.Context(), "127.0.0.2", address); err != nil {
		t.Errorf("somebody listens: %v", err)
	}
	must(t, listener.Close())
	if err := Dial(t.Context(), "127.0.0.2", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if err := Dial(t.Context(), "192.0.2.1", address); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("from an address of another host: %v", err)
	}
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	for v, want := range map[string]bool{
		"6.1.0-25-amd64": false, "5.15.0": false, "5.15": false, "5.9.1": true, "5.14.0-503.el9": true, "10.0": false, "": true, "unknown": true,
	} {
		if older(v, []int{5, 15}) != want {
			t.Errorf("%q is older than 5.15: %v", v, !want)
		}
	}
}

func FuzzSockets(f *testing.F) {
	f.Add(procTCP)
	f.Add(tcpHead + tcp(7801, "0"))
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseSockets(strings.NewReader(text))
		if err != nil && all != nil {
			t.Errorf("an error with %v", all)
		}
		for _, s := range all {
			if s.port < 0 || s.port > 65535 || s.inode == "" {
				t.Errorf("%+v", s)
			}
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

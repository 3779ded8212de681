package preflight

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

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
		"DRBD's own service": {func(p *played) { p.file("/etc/systemd/system/multi-user.target.wants/drbd.service", "") },
			"DRBD's configuration", failed, "links the copies when the host boots", "systemctl disable drbd.service", nil},
		"no volume group": {func(p *played) { p.spaceErr = lvm.ErrNoGroup }, "volume group", failed, "no volume group escache",
			"vgcreate escache", []string{"memory"}},
		"LVM fails":         {func(p *played) { p.spaceErr = errors.New("lvm: exit 5") }, "volume group", failed, "exit 5", "vgs escache", []string{"memory"}},
		"full volume group": {func(p *played) { p.space.Free = 1 << 20 }, "volume group", warning, "0.0 GiB free of 100.0 GiB", "vgextend", nil},
		"one of the disks is missing": {func(p *played) { p.space.Missing, p.space.Free = 1, 0 }, "volume group", failed,
			"1 of the disks of escache", "vgreduce --removemissing --force escache", nil},
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
		}, "certificate", failed, "n1.x ended 2027-02-28 12:00 UTC", "csi-node", nil},
		"a certificate that ends": {func(p *played) {
			p.certificate("n1.x", func(c *x509.Certificate) { c.NotAfter = noon.AddDate(0, 0, 3) })
		}, "certificate", warning, "n1.x ends 2027-03-04", "csi-node", nil},
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
			" ended ", "present certificate", nil},
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
		"no caps": {func(p *played) { p.reach = krbd.ErrRefused }, "Ceph pool", failed, "Ceph refuses",
			"ceph auth get client.admin: it needs mon 'profile rbd' and osd 'profile rbd pool=fast'", nil},
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

func TestVersionsAreComparedByNumber(t *testing.T) {
	for v, want := range map[string]bool{
		"6.1.0-25-amd64": false, "5.15.0": false, "5.15": false, "5.9.1": true, "5.14.0-503.el9": true, "10.0": false, "": true, "unknown": true,
	} {
		if older(v, []int{5, 15}) != want {
			t.Errorf("%q is older than 5.15: %v", v, !want)
		}
	}
}

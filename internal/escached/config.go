package escached

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/escache/escache-csi/internal/traces"
)

// Config is the configuration of one escached. LoadConfig reads it from a YAML file; unknown keys
// are errors.
type Config struct {
	// Node is the name of this host in replica requests.
	Node string `yaml:"node"`
	// Address is this host's IP address on the replication network, without a port.
	Address string `yaml:"address"`
	// VolumeGroup is the LVM volume group on local NVMe that holds the caches. It must exist.
	VolumeGroup string `yaml:"volumeGroup"`
	// Listen is the TCP address "IP:PORT" of the API with mutual TLS. Empty: only the unix socket
	// is served.
	Listen string `yaml:"listen"`
	// TLS names the files for Listen and for an https arbiter. They are read again when they
	// change.
	TLS TLSFiles `yaml:"tls"`
	// Socket is the path of the API's unix socket, made with mode 0600.
	Socket string `yaml:"socket"`
	// Arbiter is the URL of the arbiter, which decides whether a replica may go on without its
	// peer: unix:///PATH, http://HOST:PORT or https://HOST:PORT.
	Arbiter string `yaml:"arbiter"`
	// ArbiterTimeout bounds one call to the arbiter.
	ArbiterTimeout time.Duration `yaml:"arbiterTimeout"`
	// Ceph says how krbd reaches the Ceph cluster.
	Ceph CephConfig `yaml:"ceph"`
	// DRBD says how replicas are connected.
	DRBD DRBDConfig `yaml:"drbd"`
	// RunDir holds the records of holds, which must not survive a reboot, those of permits, and the log
	// of the fence-peer handler.
	RunDir string `yaml:"runDir"`
	// StateDir holds what must survive a reboot and must not be on the disks of the caches: the marks
	// of replicas whose disk has failed, and the secrets of the replication links.
	StateDir string `yaml:"stateDir"`
	// DeviceDir is the directory of the links POOL/IMAGE to the devices.
	DeviceDir string `yaml:"deviceDir"`
	// MaxVolumes bounds the number of replicas on this host. 0 means the number of minors.
	MaxVolumes int `yaml:"maxVolumes"`
	// Wipe is what happens to the disk of a replica that is removed.
	Wipe Wipe `yaml:"wipe"`
	// ShutdownLock is a file that csi-node keeps locked while its host shuts down and volumes are
	// connected. escached serves until csi-node has ended. Empty: it ends when it is told to.
	ShutdownLock string `yaml:"shutdownLock"`
	// OTLPEndpoint is the HOST:PORT of an OpenTelemetry collector (gRPC). Empty: nothing is traced.
	OTLPEndpoint string `yaml:"otlpEndpoint"`
}

// Wipe says how much of a removed replica is overwritten.
type Wipe string

const (
	// WipeNone leaves the disk as it is. A replica that is created there later is blank all the same.
	WipeNone Wipe = "none"
	// WipeHeader zeroes what makes the disk a cache and a replica: header, superblock and DRBD's
	// metadata. The data between stays.
	WipeHeader Wipe = "header"
	// WipeFull zeroes all of the disk. That takes as long as writing as much, unless the disk can zero
	// by itself.
	WipeFull Wipe = "full"
)

// TLSFiles names PEM files, and who may call over TCP.
type TLSFiles struct {
	Cert     string `yaml:"cert"`
	Key      string `yaml:"key"`
	ClientCA string `yaml:"clientCA"`
	// Clients may call: a certificate that ClientCA has signed needs one of these names, as its common
	// name or as a DNS name.
	Clients []string `yaml:"clients"`
}

// CephConfig names the files and the user for krbd maps.
type CephConfig struct {
	Conf    string `yaml:"conf"`
	Keyring string `yaml:"keyring"`
	// User is the Ceph user without "client.".
	User string `yaml:"user"`
}

// DRBDConfig bounds ports and minors and tunes the link.
type DRBDConfig struct {
	// ResourceDir is the directory of the resource files, one per volume. The host's drbd.conf must
	// include ResourceDir/*.res.
	ResourceDir string `yaml:"resourceDir"`
	Ports       Range  `yaml:"ports"`
	Minors      Range  `yaml:"minors"`
	// ResyncRate is DRBD's fixed resync rate, in its own notation, e.g. "100M" for 100 MiB/s.
	ResyncRate string `yaml:"resyncRate"`
}

// Range is inclusive on both ends.
type Range struct {
	First int `yaml:"first"`
	Last  int `yaml:"last"`
}

// Contains reports whether n lies in the range.
func (r Range) Contains(n int) bool { return n >= r.First && n <= r.Last }

// Size returns how many numbers the range has.
func (r Range) Size() int { return r.Last - r.First + 1 }

// DefaultConfigPath is the configuration file of the service and of its fence-peer handler.
const DefaultConfigPath = "/etc/escache/escached.yaml"

// DefaultConfig returns the defaults of all keys that a file may leave out.
func DefaultConfig() Config {
	return Config{
		VolumeGroup:    "escache",
		TLS:            TLSFiles{Clients: []string{"csi-controller"}},
		Socket:         "/run/escache/escached.sock",
		Arbiter:        "unix:///run/escache/arbiter.sock",
		ArbiterTimeout: 5 * time.Second,
		Ceph: CephConfig{
			Conf: "/etc/ceph/ceph.conf", Keyring: "/etc/ceph/ceph.client.admin.keyring", User: "admin",
		},
		DRBD: DRBDConfig{
			ResourceDir: "/etc/drbd.d",
			Ports:       Range{First: 7800, Last: 8799},
			Minors:      Range{First: 100, Last: 1099},
			ResyncRate:  "100M",
		},
		RunDir:    "/run/escache",
		StateDir:  "/var/lib/escache",
		DeviceDir: "/dev/escache",
		Wipe:      WipeHeader,
	}
}

// LoadConfig reads a file over the defaults. It does not validate the result, because flags may
// still change it.
func LoadConfig(path string) (Config, error) {
	cfg := DefaultConfig()
	data, err := os.ReadFile(path)
	if err != nil {
		return cfg, fmt.Errorf("read the configuration (name another file with --config): %w", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&cfg); err != nil {
		return cfg, fmt.Errorf("configuration %s: %w", path, err)
	}
	return cfg, nil
}

// Lengths are not part of the patterns. A bounded repeat is compiled to as many copies, and every child
// process of escached would do that at its start.
var (
	nodeName   = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$`)
	vgName     = regexp.MustCompile(`^[a-zA-Z0-9_.+][a-zA-Z0-9_.+-]*$`)
	cephUser   = regexp.MustCompile(`^[a-zA-Z0-9_.-]+$`)
	resyncRate = regexp.MustCompile(`^[1-9][0-9]{0,8}[KMG]?$`)
	volumeName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)
)

// The most characters in a name.
const (
	maxName       = 63 // of a host or a volume group
	maxVolumeName = 128
)

// IsVolumeName reports whether name can be the name of a pool or an image of a volume.
func IsVolumeName(name string) bool {
	return len(name) <= maxVolumeName && volumeName.MatchString(name)
}

// IsNodeName reports whether name is a valid host name in replica requests.
func IsNodeName(name string) bool { return len(name) <= maxName && nodeName.MatchString(name) }

// Validate returns all mistakes at once, each with the key to change.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !IsNodeName(c.Node) {
		bad("node: %q is not a host name; set it to this host's name in replica requests", c.Node)
	}
	if net.ParseIP(c.Address) == nil {
		bad("address: %q is not an IP address; set it to this host's address on the replication network", c.Address)
	}
	if len(c.VolumeGroup) > maxName || !vgName.MatchString(c.VolumeGroup) {
		bad("volumeGroup: %q is not a valid name of a volume group", c.VolumeGroup)
	}
	if !cephUser.MatchString(c.Ceph.User) {
		bad("ceph.user: %q is not a Ceph user; leave out the \"client.\"", c.Ceph.User)
	}
	for key, path := range map[string]string{
		"socket": c.Socket, "ceph.conf": c.Ceph.Conf, "ceph.keyring": c.Ceph.Keyring,
		"drbd.resourceDir": c.DRBD.ResourceDir, "runDir": c.RunDir, "stateDir": c.StateDir, "deviceDir": c.DeviceDir,
	} {
		if !filepath.IsAbs(path) {
			bad("%s: %q is not an absolute path", key, path)
		}
	}
	if c.ShutdownLock != "" && !filepath.IsAbs(c.ShutdownLock) {
		bad("shutdownLock: %q is not an absolute path", c.ShutdownLock)
	}
	if all := []Wipe{WipeNone, WipeHeader, WipeFull}; !slices.Contains(all, c.Wipe) {
		bad("wipe: %q is none of %q", c.Wipe, all)
	}
	if err := traces.CheckTarget(c.OTLPEndpoint); err != nil {
		bad("otlpEndpoint: %w", err)
	}
	errs = append(errs, c.validateNumbers(), c.validateListen(), c.validateArbiter())
	return errors.Join(errs...)
}

func (c *Config) validateNumbers() error {
	var errs []error
	if p := c.DRBD.Ports; p.First < 1024 || p.Last > 65535 || p.Size() < 1 {
		errs = append(errs, fmt.Errorf("drbd.ports: %d-%d is not a range within 1024-65535", p.First, p.Last))
	}
	if m := c.DRBD.Minors; m.First < 0 || m.Last >= 1<<20 || m.Size() < 1 {
		errs = append(errs, fmt.Errorf("drbd.minors: %d-%d is not a range within 0-1048575", m.First, m.Last))
	}
	if !resyncRate.MatchString(c.DRBD.ResyncRate) {
		errs = append(errs, fmt.Errorf("drbd.resyncRate: %q is not a rate such as 100M", c.DRBD.ResyncRate))
	}
	if c.ArbiterTimeout < 100*time.Millisecond || c.ArbiterTimeout > time.Minute {
		errs = append(errs, fmt.Errorf("arbiterTimeout: %s is not between 100ms and 1m", c.ArbiterTimeout))
	}
	if c.MaxVolumes < 0 {
		errs = append(errs, fmt.Errorf("maxVolumes: %d is negative", c.MaxVolumes))
	}
	return errors.Join(errs...)
}

func (c *Config) validateListen() error {
	if c.Listen == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: %q is not IP:PORT: %w", c.Listen, err)
	}
	if c.TLS.Cert == "" || c.TLS.Key == "" || c.TLS.ClientCA == "" {
		return errors.New("tls: cert, key and clientCA are needed with listen; TCP is never served without client certificates")
	}
	if len(c.TLS.Clients) == 0 || slices.Contains(c.TLS.Clients, "") {
		return errors.New("tls.clients: name who may call over TCP, as in their certificates, for example csi-controller")
	}
	return nil
}

func (c *Config) validateArbiter() error {
	u, err := url.Parse(c.Arbiter)
	if err != nil {
		return fmt.Errorf("arbiter: %w", err)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
	default:
		return fmt.Errorf("arbiter: %q is neither unix:///PATH nor http(s)://HOST:PORT", c.Arbiter)
	}
	return nil
}

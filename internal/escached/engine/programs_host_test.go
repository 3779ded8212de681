package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/child"
	"github.com/escache/escache-csi/internal/escached/devmapper"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// machine is a world whose layers are the real ones down to the programs that they start. The programs
// do nothing but what the next layer reads: what is on a disk, and which devices there are.
type machine struct {
	*world

	ran     []string // programs since the last look
	disks   map[string][]byte
	devices map[string]*mappedDevice
	loops   map[string]bool
	// dirty is how many blocks the origin lacks.
	dirty int64

	// breaker is that of a program that hangs.
	breaker *command.Breaker

	group  *lvm.Group
	adm    *drbd.Control
	images *krbd.Client
}

type mappedDevice struct {
	target, table, loaded string
	sectors               int64
	suspended             bool
}

const (
	diskBytes   = 2 << 20
	machineDisk = "147:100"
	cacheBlocks = 100
)

func newMachine(t *testing.T) *machine {
	m := &machine{world: newWorld(t), disks: map[string][]byte{}, devices: map[string]*mappedDevice{}, loops: map[string]bool{}, breaker: command.NewBreaker()}
	conf, keyring := filepath.Join(m.dir, "ceph.conf"), filepath.Join(m.dir, "keyring")
	for path, text := range map[string]string{
		conf: "[global]\nmon_host = 10.0.0.9:6789\n", keyring: "[client.escache]\nkey = a2V5\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.group, m.adm = lvm.New("vg", m), drbd.NewControl(m, m.resources())
	m.images = krbd.New(krbd.Config{Conf: conf, Keyring: keyring, User: "escache", Sys: m.dir}, child.NewClient(m))
	return m
}

func (m *machine) resources() drbd.Files { return drbd.Files{Dir: filepath.Join(m.dir, "drbd.d")} }

// start starts escached, and fails if a volume cannot be recovered.
func (m *machine) start() *Engine {
	m.t.Helper()
	e := m.recovered()
	e.faults.Range(func(name, why any) bool { m.t.Errorf("recover %v: %v", name, why); return false })
	return e
}

// recovered starts escached.
func (m *machine) recovered() *Engine {
	cfg := escached.DefaultConfig()
	cfg.Node, cfg.Address, cfg.RunDir, cfg.DeviceDir = "n1", "10.0.0.1", filepath.Join(m.dir, "run"), filepath.Join(m.dir, "dev")
	cfg.StateDir = filepath.Join(m.dir, "state")
	e := New(host.New(cfg, "n1", host.Handlers{FencePeer: "fence", DiskFailed: "failed"}, host.Layers{
		Store: machineStore{(*worldStore)(m.world), m}, Replicator: machineDRBD{(*worldDRBD)(m.world), m},
		Resources: machineFiles{(*worldFiles)(m.world), m}, States: (*worldDRBD)(m.world),
		Records: (*worldRecords)(m.world), Images: machineImages{(*worldImages)(m.world), m},
		Caches: cache.Engines{
			escache.EngineWritecache: writecache.New(machineMapper{devmapper.New(m), m}, machineLoops{m}, child.NewClient(m)),
		},
		Kernel: worldKernel{}, Memory: (*worldMemory)(m.world),
		KillUsers: (*worldDRBD)(m.world).KillUsers, Stuck: func() map[string]*command.StuckError { return nil },
		Listens: m.listens,
	}), "test", slog.New(slog.DiscardHandler))
	if err := e.Recover(context.Background()); err != nil {
		m.t.Fatal(err)
	}
	return e
}

// boot is what a start of the host leaves of it.
func (m *machine) boot() {
	clear(m.devices)
	clear(m.loops)
	clear(m.minors)
	m.maps, m.dirty = nil, 0
	for name, lv := range m.lvs {
		lv.Active = false
		m.lvs[name] = lv
	}
}

// Run implements command.Runner.
func (m *machine) Run(ctx context.Context, c command.Command) (command.Result, error) {
	return command.Traced(ctx, c, m.program)
}

func (m *machine) program(_ context.Context, c command.Command) (command.Result, error) {
	if err := m.breaker.Allow(c.Volume, c.Query); err != nil {
		return command.Result{}, err
	}
	m.ran = append(m.ran, title(c))
	switch {
	case c.Name == "dmsetup":
		return command.Result{}, m.dmsetup(c.Args)
	case c.Name == "/proc/self/exe" && c.Args[1] != "sysfs-write":
		return m.child(c)
	}
	return command.Result{}, nil
}

// title names a program and what it is to do.
func title(c command.Command) string {
	switch words := c.Args; c.Name {
	case "lvm":
		if words[0] != "lvchange" {
			return "lvm " + words[0]
		}
		if slices.Contains(words, "--activate") {
			return "lvm lvchange activate"
		}
		return "lvm lvchange tags"
	case "drbdadm":
		verbs := slices.DeleteFunc(slices.Clone(words[2:]), func(w string) bool { return w[0] == '-' || w[0] == ':' })
		return "drbdadm " + verbs[0]
	case "/proc/self/exe":
		return strings.Join(words[:2], " ")
	default:
		return c.Name + " " + words[0]
	}
}

// disk is what is on a disk: that of an LV, or of the DRBD device on it.
func (m *machine) disk(path string) []byte {
	path = m.diskOf(path)
	if name := filepath.Base(path); !m.lvs[name].Active {
		m.t.Errorf("the LV %s is used and not active", name)
	}
	if m.disks[path] == nil {
		m.disks[path] = bytes.Repeat([]byte("old"), diskBytes/3+1)[:diskBytes]
	}
	return m.disks[path]
}

// child does what the child process does, without direct I/O.
func (m *machine) child(c command.Command) (command.Result, error) {
	op, disk := c.Args[1], m.disk(c.Args[2])
	var numbers []int64
	for _, word := range c.Args[3:] {
		n, err := strconv.ParseInt(word, 10, 64)
		if err != nil && op != "query" {
			m.t.Errorf("%q: %v", c.Args, err)
		}
		numbers = append(numbers, n)
	}
	var out bytes.Buffer
	switch op {
	case "read":
		for _, at := range numbers {
			out.Write(disk[at:][:cache.BlockBytes])
		}
	case "write":
		copy(disk[numbers[0]:], c.Stdin)
	case "query":
		if err := writecache.Queries()[c.Args[3]](bytes.NewReader(disk), &out); err != nil {
			return command.Result{}, err
		}
	default:
		m.t.Errorf("an unknown child: %q", c.Args)
	}
	return command.Result{Stdout: out.Bytes()}, nil
}

// dmsetup makes and changes devices. Where there is no superblock the kernel makes one.
func (m *machine) dmsetup(args []string) error {
	device := m.devices[args[1]]
	switch args[0] {
	case "create":
		device = &mappedDevice{loaded: args[3]}
		device.resume(m)
		m.devices[args[1]] = device
	case "remove":
		delete(m.devices, args[1])
	case "suspend":
		m.devices[args[len(args)-1]].suspended = true
	case "load":
		device.loaded = args[3]
	case "resume":
		device.resume(m)
	case "message":
		m.dirty = 0
	default:
		return fmt.Errorf("dmsetup %q", args)
	}
	return nil
}

// resume puts the loaded table in effect. The kernel prints numbers for paths.
func (d *mappedDevice) resume(m *machine) {
	d.suspended = false
	if d.loaded == "" {
		return
	}
	words := strings.SplitN(d.loaded, " ", 4)
	d.sectors, _ = strconv.ParseInt(words[1], 10, 64)
	d.target, d.loaded = words[2], ""
	d.table = strings.NewReplacer(m.image.Path(), m.image.Number, drbd.Device(putReq.Minor), machineDisk).Replace(words[3])
	superblock := m.disk(drbd.Device(putReq.Minor))[cache.HeaderBytes:]
	if d.target == "writecache" && cache.Blank(superblock[:cache.BlockBytes]) {
		// Magic, version, size of a block, number of blocks, and a sequence number below which there is nothing.
		copy(superblock, "\x21\x93\x48\x23\x01\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x64\x00\x00\x00\x00\x00\x00\x00")
	}
}

type machineMapper struct {
	*devmapper.Mapper

	m *machine
}

func (d machineMapper) Version(context.Context, string) (string, error) { return "1.6.0", nil }

func (d machineMapper) Devices(_ context.Context, prefix string, use func(map[string]devmapper.Device) error) error {
	out := map[string]devmapper.Device{}
	for name, device := range d.m.devices {
		if strings.HasPrefix(name, prefix) {
			out[name] = devmapper.Device{
				Target: device.target, Sectors: device.sectors, Table: device.table, Suspended: device.suspended,
				Status: fmt.Sprintf("0 %d %d 0 0 0 0 0 0", cacheBlocks, cacheBlocks-d.m.dirty),
			}
		}
	}
	return use(out)
}

// machineLoops stands in for loop devices, which are read from the running kernel.
type machineLoops struct{ m *machine }

func (l machineLoops) Find(backing string) (string, error) {
	if l.m.loops[backing] {
		return "/dev/loop7", nil
	}
	return "", nil
}

func (l machineLoops) Attach(ctx context.Context, _, backing string, size int64) (string, error) {
	below := l.m.devices[strings.TrimPrefix(backing, devmapper.Node(""))]
	front := l.m.devices[strings.TrimPrefix(backing, devmapper.Node(""))+"-front"]
	switch {
	case below.sectors != size/devmapper.SectorBytes:
		l.m.t.Errorf("a loop device of %d bytes on %+v", size, below)
	case !l.m.loops[backing]:
		l.m.loops[backing] = true
		_, _ = l.m.Run(ctx, command.Command{Name: "losetup", Args: []string{"--find"}})
	case front != nil && front.sectors != below.sectors:
		_, _ = l.m.Run(ctx, command.Command{Name: "losetup", Args: []string{"--set-capacity"}})
	}
	return "/dev/loop7", nil
}

func (l machineLoops) Detach(ctx context.Context, _, backing string) error {
	if l.m.loops[backing] {
		delete(l.m.loops, backing)
		_, _ = l.m.Run(ctx, command.Command{Name: "losetup", Args: []string{"--detach"}})
	}
	return nil
}

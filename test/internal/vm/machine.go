// Package vm runs QEMU machines, so that tests have real kernels with all modules. Power loss is
// real too: it is a SIGKILL of QEMU.
package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/escache/escache-csi/test/internal/process"
)

// Config is what a machine is built from. It does not change while the machine exists.
type Config struct {
	Name      string
	Kernel    string
	Initrd    string
	MemoryMiB int
	CodeMiB   int    // QEMU's room for translated code; 0: 128
	Disks     []Disk // become vda, vdb, … in this order
	NICs      []NIC  // become eth0, eth1, …
	Console   string // file that the serial console is appended to
	Log       string // file for what QEMU itself says
}

// Disk is a raw file.
type Disk struct {
	Path     string
	ReadOnly bool
	// Forgetful: what the guest has not flushed is lost with the power, as with a real disk's
	// volatile cache.
	Forgetful bool
}

// NIC is a network card on a tap device that exists already.
type NIC struct {
	Tap string
	MAC string
}

// Machine is off or runs. Its methods may be called from several goroutines.
type Machine struct {
	config Config

	mu      sync.Mutex
	qemu    *process.Process
	servers []*process.Process // of its forgetful disks
}

// New describes a machine that is off.
func New(config Config) *Machine { return &Machine{config: config} }

// PowerOn starts the machine and returns as soon as QEMU runs; when the guest is ready is the
// caller's to find out.
func (m *Machine) PowerOn() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running() {
		return fmt.Errorf("machine %s is on already", m.config.Name)
	}
	servers, err := m.serve()
	if err != nil {
		return fmt.Errorf("power on: %w", err)
	}
	qemu, err := process.Start(process.Spec{
		Name: m.config.Name, Path: "qemu-system-x86_64", Args: arguments(m.config), Log: m.config.Log,
	})
	if err != nil {
		return errors.Join(fmt.Errorf("power on: %w", err), forget(servers))
	}
	m.qemu, m.servers = qemu, servers
	return nil
}

// PowerOff takes the power away: what the guest has not written to its disks is lost, and of
// forgetful ones what it has not flushed. It does nothing when the machine is off.
func (m *Machine) PowerOff() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running() {
		return nil
	}
	// First the machine: to a guest that still runs, the end of its disks would be an error that it
	// tells its peer.
	return errors.Join(m.qemu.Kill(), forget(m.servers))
}

// Freeze stops the machine as a hypervisor that pauses it does: its processor stands still, its
// memory stays, and its clock goes on without it. It returns when the machine stands still.
func (m *Machine) Freeze(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running() {
		return fmt.Errorf("machine %s is off", m.config.Name)
	}
	return m.qemu.Pause(ctx)
}

// Thaw lets a frozen machine go on.
func (m *Machine) Thaw() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.running() {
		return fmt.Errorf("machine %s is off", m.config.Name)
	}
	return m.qemu.Continue()
}

// Running reports whether the machine has power. A guest whose kernel panicked has none: QEMU ends
// then.
func (m *Machine) Running() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running()
}

func (m *Machine) running() bool { return m.qemu != nil && m.qemu.Err() == nil }

// Wait returns when ctx is done, or, with an error, when the machine has lost its power.
func (m *Machine) Wait(ctx context.Context) error {
	m.mu.Lock()
	qemu := m.qemu
	m.mu.Unlock()
	if qemu == nil {
		return errors.New("the machine is off")
	}
	select {
	case <-ctx.Done():
		return nil
	case <-qemu.Done():
		return qemu.Err()
	}
}

// kernelArguments leave out what only costs time in an emulated machine, and the checks of its
// timers, which fail when the machine below is busy. A panic ends the machine, so that it is seen.
const kernelArguments = "console=ttyS0 panic=-1 quiet loglevel=5 mitigations=off cryptomgr.notests apparmor=0 rcupdate.rcu_expedited=1 " +
	"no_timer_check"

// counterRate is measured once: it is the same for all machines, and takes a tenth of a second.
var counterRate = sync.OnceValue(counterKHz)

// processor is everything that QEMU can emulate, but for what an emulated machine is slower with:
// to copy byte by byte where it could do so by words (erms), page tables with a fifth level, checks
// around each copy to and from a program, and vectors that take a call each.
const processor = "max,-erms,-la57,-smap,-pku,-avx,-avx2"

// processors are one, with room for a second that is never put in: before version 8.0, QEMU leaves
// memory barriers out where there can be only one, and devices are threads of their own. A network
// card or a disk then missed, once in some hours, that there was something to do, and stood still
// for good.
const processors = "1,maxcpus=2"

// arguments is QEMU's command line. Emulation, not KVM: it works everywhere, and a machine that is
// itself virtual often cannot nest.
func arguments(config Config) []string {
	codeMiB := config.CodeMiB
	if codeMiB == 0 {
		codeMiB = 128
	}
	kernel := kernelArguments
	if rate := counterRate(); rate > 0 {
		kernel += " tsc_early_khz=" + strconv.Itoa(rate)
	}
	args := []string{
		"-name", config.Name, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-M", "q35", "-accel", "tcg,thread=multi,tb-size=" + strconv.Itoa(codeMiB),
		"-cpu", processor, "-smp", processors, "-m", strconv.Itoa(config.MemoryMiB),
		"-kernel", config.Kernel, "-initrd", config.Initrd,
		"-append", kernel,
		"-chardev", "file,id=console,append=on,path=" + config.Console, "-serial", "chardev:console",
		"-device", "virtio-rng-pci",
	}
	for i, disk := range config.Disks {
		id := fmt.Sprintf("disk%d", i)
		drive := "if=none,format=raw,id=" + id + ",file="
		switch {
		case disk.ReadOnly:
			drive += disk.Path + ",readonly=on"
		case disk.Forgetful:
			drive += "nbd:unix:" + socket(disk) + ",cache=writeback"
		default:
			// "unsafe" leaves completed writes in this machine's page cache, which a killed QEMU
			// does not take with it.
			drive += disk.Path + ",cache=unsafe,discard=unmap"
		}
		args = append(args, "-drive", drive, "-device", "virtio-blk-pci,drive="+id)
	}
	for i, nic := range config.NICs {
		id := fmt.Sprintf("nic%d", i)
		args = append(args, "-netdev", fmt.Sprintf("tap,id=%s,ifname=%s,script=no,downscript=no", id, nic.Tap),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=%s,mac=%s,romfile=", id, nic.MAC))
	}
	return args
}

// MakeDisk makes an empty disk that takes room only for what is written to it.
func MakeDisk(path string, sizeMiB int) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	if err := errors.Join(file.Truncate(int64(sizeMiB)<<20), file.Close()); err != nil {
		return fmt.Errorf("make a disk: %w", err)
	}
	return nil
}

package preflight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// packages are the programs that escached starts, and Debian's packages that have them.
var packages = []struct{ program, name string }{
	{"modprobe", "kmod"}, {"lvm", "lvm2"}, {"dmsetup", "dmsetup"}, {"losetup", "mount"}, {"drbdadm", "drbd-utils"},
	{"blkdiscard", "util-linux"},
}

func (h *Host) programs(context.Context) checklist.Result {
	var found, missing, install []string
	for _, p := range packages {
		if _, err := h.System.LookPath(p.program); err != nil {
			missing, install = append(missing, p.program), append(install, p.name)
			continue
		}
		found = append(found, p.program)
	}
	if len(missing) > 0 {
		return checklist.Badf(checklist.Failed, "install the packages "+strings.Join(install, ", ")+" (Debian's names)",
			"not installed, or not on the PATH: %s", strings.Join(missing, ", "))
	}
	return checklist.Goodf("%s", strings.Join(found, ", "))
}

// modules loads the modules, because nothing else tells whether the kernel takes them.
func (h *Host) modules(ctx context.Context) []checklist.Result {
	modules := h.Kernel.Modules(ctx)
	found, _ := h.Kernel.Describe(ctx)
	var all []checklist.Result
	for _, m := range modules {
		all = append(all, module(m.Name, m.Err, found.DRBD).Of("module "+m.Name))
	}
	return all
}

// supportedDRBD is the version in stock kernels. escached refuses hosts with another one.
const supportedDRBD = "8.4"

func module(name string, err error, drbdVersion string) checklist.Result {
	switch {
	case err != nil:
		return checklist.Badf(checklist.Failed, fmt.Sprintf("install the package with the modules of this kernel (Ubuntu: "+
			"linux-modules-extra-$(uname -r)); if modprobe %s still fails, look for a file in /etc/modprobe.d that forbids it, and at "+
			"dmesg: Secure Boot takes only signed modules", name), "the kernel does not load it: %v", err)
	case name != "drbd":
		return checklist.Goodf("loaded, or built in")
	case drbdVersion == "":
		return checklist.Badf(checklist.Failed, "read dmesg: the module is loaded and /proc/drbd is not there",
			"loaded, and does not tell its version")
	case !strings.HasPrefix(drbdVersion, supportedDRBD+"."):
		return checklist.Badf(checklist.Failed, "remove the package of DRBD 9's module (drbd-dkms), so that the kernel's own one is loaded",
			"version %s; only %s is supported", drbdVersion, supportedDRBD)
	}
	return checklist.Goodf("version %s", drbdVersion)
}

// The oldest versions that somebody expects to work: docs/support.md.
var (
	oldestKernel = []int{5, 15}
	oldestLVM    = []int{2, 3}
	oldestUtils  = []int{9, 0}
)

func (h *Host) release(ctx context.Context) checklist.Result {
	found, _ := h.Kernel.Describe(ctx)
	return version(found.Release, oldestKernel, nil, "install a newer kernel (docs/support.md)")
}

func (h *Host) lvmVersion(ctx context.Context) checklist.Result {
	v, err := h.Store.Version(ctx)
	return version(v, oldestLVM, err, "install lvm2 from a newer release of the distribution (docs/support.md)")
}

func (h *Host) drbdVersion(ctx context.Context) checklist.Result {
	v, err := h.Tools.Version(ctx)
	return version(v, oldestUtils, err, "install drbd-utils from a newer release of the distribution (docs/support.md)")
}

func version(v string, oldest []int, err error, remedy string) checklist.Result {
	switch {
	case err != nil:
		return checklist.Badf(checklist.Failed, "install the package, or run the command by hand to see what it lacks", "%v", err)
	case older(v, oldest):
		return checklist.Badf(checklist.Warning, remedy, "version %s; nobody has tried one before %d.%d", v, oldest[0], oldest[1])
	}
	return checklist.Goodf("version %s", v)
}

// older reports whether a version such as 6.1.0-25-amd64 is before the one that begins with these numbers.
// A version without numbers is.
func older(version string, than []int) bool {
	var numbers []int
	for part := range strings.SplitSeq(version, ".") {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			break
		}
		numbers = append(numbers, n)
	}
	return slices.Compare(numbers, than) < 0
}

// helper checks the program that the kernel runs when DRBD has lost a peer.
func (h *Host) helper(context.Context) checklist.Result {
	const (
		parameter = "/sys/module/drbd/parameters/usermode_helper"
		remedy    = "write \"options drbd usermode_helper=/sbin/drbdadm\" to /etc/modprobe.d/drbd.conf, and now: " +
			"echo /sbin/drbdadm >" + parameter
	)
	data, err := os.ReadFile(h.System.path(parameter))
	path := strings.TrimSpace(string(data))
	switch {
	case os.IsNotExist(err):
		return checklist.Badf(checklist.Unknown, "load the module drbd", "the module drbd is not loaded")
	case err != nil:
		return checklist.Badf(checklist.Failed, "read "+parameter+" as root", "%v", err)
	case filepath.Base(path) != "drbdadm":
		return checklist.Badf(checklist.Failed, remedy,
			"the kernel runs %q when a peer is lost, and not drbdadm: I/O would stay frozen", path)
	}
	info, err := os.Stat(h.System.path(path))
	switch {
	case err != nil:
		return checklist.Badf(checklist.Failed, "install drbd-utils; if drbdadm is elsewhere: "+remedy,
			"the kernel runs %s when a peer is lost, and there is none: I/O would stay frozen", path)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return checklist.Badf(checklist.Failed, "chmod +x "+path, "the kernel runs %s when a peer is lost, and it is not executable", path)
	}
	return checklist.Goodf("the kernel runs %s when a peer is lost", path)
}

func (h *Host) drbdConf(context.Context) checklist.Result {
	const conf = "/etc/drbd.conf"
	dir := h.Config.DRBD.ResourceDir
	included, err := drbd.Files{Dir: h.System.path(dir)}.Included(h.System.path(conf))
	remedy := fmt.Sprintf("add this line to %s: include \"%s/*.res\";", conf, dir)
	switch {
	case err != nil:
		return checklist.Badf(checklist.Failed, "install drbd-utils, which brings it, or "+remedy, "%v", err)
	case !included:
		return checklist.Badf(checklist.Failed, remedy,
			"%s does not include %s/*.res: DRBD's handlers would not find the volumes", conf, dir)
	}
	// It would link a copy at boot that escached links only after it has asked whether that copy is current.
	if enabled, _ := filepath.Glob(h.System.path("/etc/systemd/system/*.wants/drbd.service")); len(enabled) > 0 {
		return checklist.Badf(checklist.Failed, "systemctl disable drbd.service (without --now, which would stop volumes in use)",
			"drbd.service is enabled: it links the copies when the host boots, before escached knows whether they are current")
	}
	return checklist.Goodf("%s includes %s/*.res", conf, dir)
}

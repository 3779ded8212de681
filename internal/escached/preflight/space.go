package preflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// leastFree is the size of the smallest cache that a StorageClass makes by default. With less free than
// that no volume is placed on the host.
const leastFree = 1 << 30

func (h *Host) volumeGroup(ctx context.Context) checklist.Result {
	group := h.Config.VolumeGroup
	space, err := h.Store.Space(ctx)
	switch {
	case errors.Is(err, lvm.ErrNoGroup):
		return checklist.Badf(checklist.Failed,
			"make it on the local NVMe: vgcreate "+group+" /dev/nvme0n1; or set volumeGroup (--volume-group)",
			"there is no volume group %s", group)
	case err != nil:
		return checklist.Badf(checklist.Failed, "run vgs "+group+" by hand and correct what it complains of", "%v", err)
	case space.Missing > 0:
		return checklist.Badf(checklist.Failed, "bring the disk back; "+lvm.WithoutMissing(group),
			"LVM does not find %d of the disks of %s, and creates no cache before they are back or taken out", space.Missing, group)
	case space.Free < leastFree:
		return checklist.Badf(checklist.Warning,
			"add a disk (vgextend "+group+" DEVICE), or remove logical volumes that are not escached's",
			"%s: %s free of %s: hardly any cache fits", group, size(space.Free), size(space.Capacity))
	}
	return checklist.Goodf("%s: %s free of %s; the host's identity is %s, which no other host may have", group, size(space.Free),
		size(space.Capacity), space.GroupID)
}

// memoryPercent is what dm-writecache keeps in memory for a cache: docs/sizing.md.
const memoryPercent = 2

// memory compares the host's memory with what it takes if all of the volume group is used for caches whose
// volumes are attached here.
func (h *Host) memory(ctx context.Context) checklist.Result {
	total, err := memTotal(h.System.path("/proc/meminfo"))
	if err != nil {
		return checklist.Badf(checklist.Unknown, "read /proc/meminfo by hand", "%v", err)
	}
	space, err := h.Store.Space(ctx)
	if err != nil {
		return checklist.Badf(checklist.Unknown, "make the volume group first",
			"%s; how much the caches need follows from the volume group", size(total))
	}
	most := space.Capacity / 100 * memoryPercent
	if most > total/2 {
		return checklist.Badf(checklist.Warning, "add memory, or attach fewer and smaller caches here: docs/sizing.md has the rule",
			"%s; if volumes with %s of cache are attached here, the kernel keeps %s of it for them",
			size(total), size(space.Capacity), size(most))
	}
	return checklist.Goodf("%s; caches take at most %s of it", size(total), size(most))
}

// memTotal reads the size of the memory, in bytes.
func memTotal(path string) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	for scan := bufio.NewScanner(file); scan.Scan(); {
		if rest, ok := strings.CutPrefix(scan.Text(), "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no MemTotal", path)
}

// size is a number of bytes for people.
func size(bytes int64) string { return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30)) }

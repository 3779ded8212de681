package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/escache/escache-csi/internal/node/mounts"
)

// KernelProgress reads the counters of the krbd device below a volume's device (kernel: Documentation/block/stat.rst). They
// tell a Ceph that takes nothing from one that has nothing to take.
func KernelProgress(device string) (Progress, bool) {
	number, err := mounts.DeviceNumber(device)
	if err != nil {
		return Progress{}, false
	}
	below := "/sys/dev/block/" + number.String() + "/slaves/"
	if loops, err := filepath.Glob(below + "loop*/loop/backing_file"); err == nil && len(loops) == 1 {
		// A loop device stands between what users get and the cache.
		backing, err := os.ReadFile(loops[0])
		if err != nil {
			return Progress{}, false
		}
		if number, err = mounts.DeviceNumber(strings.TrimSpace(string(backing))); err != nil {
			return Progress{}, false
		}
		below = "/sys/dev/block/" + number.String() + "/slaves/"
	}
	maps, err := filepath.Glob(below + "rbd*/stat")
	if err != nil || len(maps) != 1 {
		return Progress{}, false
	}
	data, err := os.ReadFile(maps[0]) //nolint:gosec // sysfs's own file
	if err != nil {
		return Progress{}, false
	}
	return parseStat(string(data))
}

func parseStat(stat string) (Progress, bool) {
	var reads, writes, inFlight, skip uint64
	n, err := fmt.Sscan(strings.TrimSpace(stat), &reads, &skip, &skip, &skip, &writes, &skip, &skip, &skip, &inFlight)
	if err != nil || n != 9 {
		return Progress{}, false
	}
	return Progress{Completed: reads + writes, InFlight: inFlight}, true
}

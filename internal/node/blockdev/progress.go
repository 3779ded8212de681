package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Progress is how far the I/O of a volume's RBD image has come.
type Progress struct {
	// Completed is the number of reads and writes that have ended since the image was mapped.
	Completed uint64
	// InFlight is the number of those that have not ended.
	InFlight uint64
}

// ImageProgress reads the I/O counters of the krbd device below a volume's device (kernel:
// Documentation/block/stat.rst). They show whether Ceph is stuck or has nothing to do. It returns
// false if it cannot find or read them.
func ImageProgress(device string) (Progress, bool) {
	number, err := NumberOf(device)
	if err != nil {
		return Progress{}, false
	}
	if loops, err := filepath.Glob(number.sys() + "/slaves/loop*/loop/backing_file"); err == nil && len(loops) == 1 {
		// A loop device stands between the volume's device and the cache.
		backing, err := os.ReadFile(loops[0])
		if err != nil {
			return Progress{}, false
		}
		if number, err = NumberOf(strings.TrimSpace(string(backing))); err != nil {
			return Progress{}, false
		}
	}
	images, err := filepath.Glob(number.sys() + "/slaves/rbd*/stat")
	if err != nil || len(images) != 1 {
		return Progress{}, false
	}
	data, err := os.ReadFile(images[0]) //nolint:gosec // sysfs's own file
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

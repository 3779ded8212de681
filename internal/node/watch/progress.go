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
	slaves, err := filepath.Glob("/sys/dev/block/" + number.String() + "/slaves/rbd*/stat")
	if err != nil || len(slaves) != 1 {
		return Progress{}, false
	}
	data, err := os.ReadFile(slaves[0])
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

package supervisor

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/escache/escache-csi/test/internal/vm"
)

// Files of a node's disks.
const (
	rootDisk = "root.img"
	nvmeDisk = "nvme.img"
)

// diskTime bounds what is done to a node's disk.
const diskTime = 30 * time.Second

// fillScript takes all free extents. Fewer than one is full, which is what was asked for.
const fillScript = `
free=$(vgs --noheadings -o vg_free_count escache | tr -d ' ')
[ "$free" = 0 ] || lvcreate -q -y -an -Wn -Zn --addtag lab-fill -l 100%FREE -n "lab_fill_$free" escache >/dev/null
`

const emptyScript = `lvremove -q -y @lab-fill >/dev/null`

// failScript loads another table into the linear device below the volume group: suspended without
// flushing, since what is under way shall meet the error.
const failScript = `
size=$(blockdev --getsz /dev/vdb)
dmsetup load nvme0 --table "0 $size error"
dmsetup suspend --noflush --nolockfs nvme0
dmsetup resume nvme0
`

const restoreScript = `
size=$(blockdev --getsz /dev/vdb)
dmsetup load nvme0 --table "0 $size linear /dev/vdb 0"
dmsetup suspend --noflush --nolockfs nvme0
dmsetup resume nvme0
`

func (n *node) script(ctx context.Context, script string) error {
	ctx, cancel := context.WithTimeout(ctx, diskTime)
	defer cancel()
	_, err := n.run(ctx, nil, "sh", "-ec", script)
	return err
}

// fill takes the free room of the node's volume group, or gives it back.
func (n *node) fill(ctx context.Context, undo bool) error {
	if undo {
		return n.script(ctx, emptyScript)
	}
	return n.script(ctx, fillScript)
}

// newDisk is what somebody does who replaces a dead NVMe: the next boot finds an empty one.
func (n *node) newDisk() error { return n.replace(nvmeDisk, n.makeNVMe) }

// reinstall is what somebody does who installs the host again: the next boot finds the root disk as the
// first one did. The NVMe stays.
func (n *node) reinstall() error { return n.replace(rootDisk, n.makeRoot) }

// replace has a disk of a node that is off made anew.
func (n *node) replace(disk string, made func(path string) error) error {
	n.power.Lock()
	defer n.power.Unlock()
	if n.machine.Running() {
		return fmt.Errorf("%s is on: take its power away first", n.name)
	}
	path := n.path(disk)
	if err := os.Remove(path); err != nil {
		return err
	}
	return made(path)
}

func (n *node) makeNVMe(path string) error { return vm.MakeDisk(path, n.lab.plan.DiskMiB) }

func (n *node) makeRoot(path string) error { return vm.CopyDisk(n.lab.plan.Image.Root, path) }

// failDisk makes the stand-in for NVMe fail, or work again.
func (n *node) failDisk(ctx context.Context, restore bool) error {
	script := failScript
	if restore {
		script = restoreScript
	}
	if err := n.script(ctx, script); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.diskFailed = !restore
	return nil
}

package labtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// residueScript prints one line for everything on a host that belongs to a volume.
const residueScript = `
lvs --noheadings -o lv_name | sed 's/^ */logical volume /'
for d in /sys/block/drbd*; do [ -e "$d" ] && echo "minor ${d##*drbd}"; done
drbdsetup show 2>/dev/null | sed -n 's/^resource \(.*\) {/resource \1/p'
dmsetup ls | grep -v -e '^nvme0' -e '^No devices' | sed 's/^/device-mapper /'
for f in /sys/block/loop*/loop/backing_file; do [ -e "$f" ] && echo "loop device of $(cat "$f")"; done
for d in /sys/bus/rbd/devices/*; do [ -e "$d" ] && echo "rbd map $(cat "$d"/pool "$d"/name | tr '\n' ' ')"; done
grep -e csi.escache.io -e '/dev/.*escache' -e kubernetes.io/csi/volumeDevices /proc/self/mountinfo | cut -d' ' -f4,5 | sed 's/^/mount /'
find /dev/escache -type l 2>/dev/null | sed 's/^/link /'
find /etc/drbd.d -type f ! -name global_common.conf | sed "s/^/resource file /"
ss -Htln '( sport >= :7800 and sport <= :8799 )' | sed 's/^/port /'
ls /var/lib/escache/link-secrets 2>/dev/null | sed "s/^/secret of a link /"
ls /run/escache/holds 2>/dev/null | sed "s/^/hold /"
exit 0`

// Residue lists what a host still has of any volume, a line each.
func (h *Host) Residue(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	out, err := h.Try(ctx, nil, "sh", "-c", residueScript)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" }), nil
}

// AssertNothingLeft fails the test for everything that a volume left behind: on the hosts logical
// volumes, DRBD minors, resources and ports, device-mapper devices, maps, mounts, links, files; in Ceph
// images and with them watchers, and trash. It looks everywhere at the same time: each look takes a second
// or two, and it is made after each test.
func (l *Lab) AssertNothingLeft(t T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var looks []func() []string
	for _, h := range l.Hosts {
		looks = append(looks, func() []string { return h.leftBehind(ctx) })
	}
	for _, pool := range l.Pools {
		for _, args := range [][]string{{"ls", pool}, {"trash", "ls", pool}} {
			looks = append(looks, func() []string { return leftInCeph(ctx, args) })
		}
	}
	left := make([][]string, len(looks))
	var group sync.WaitGroup
	for i, look := range looks {
		group.Go(func() { left[i] = look() })
	}
	group.Wait()
	for _, line := range slices.Concat(left...) {
		t.Errorf("%s", line)
	}
}

// leftBehind says what a host still has of any volume, or why that is not known.
func (h *Host) leftBehind(ctx context.Context) (said []string) {
	left, err := h.Residue(ctx)
	if err != nil {
		said = append(said, fmt.Sprintf("%s: what is left: %v", h.Name, err))
	}
	for _, line := range left {
		said = append(said, fmt.Sprintf("%s: left behind: %s", h.Name, line))
	}
	status, err := h.API.Status(ctx)
	switch {
	case err != nil:
		said = append(said, fmt.Sprintf("%s: status: %v", h.Name, err))
	case len(status.Volumes) > 0:
		said = append(said, fmt.Sprintf("%s: left behind in status: %+v", h.Name, status.Volumes))
	}
	return said
}

// leftInCeph says what a command of rbd lists, or why it cannot.
func leftInCeph(ctx context.Context, args []string) []string {
	images, err := command(ctx, "rbd", args...)
	switch {
	case err != nil:
		return []string{err.Error()}
	case images != "":
		return []string{fmt.Sprintf("left behind in Ceph (rbd %s): %s", strings.Join(args, " "), images)}
	}
	return nil
}

// watcherLimit is how long Ceph remembers a client that died, and some.
const watcherLimit = 45 * time.Second

// WaitForNoWatcher waits until no client has the image open any more.
func (v *Volume) WaitForNoWatcher(t T) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("no watcher of %s", v), watcherLimit, func(ctx context.Context) error {
		watchers, err := v.Watchers(ctx)
		if err == nil && len(watchers) > 0 {
			err = fmt.Errorf("watched by %v", watchers)
		}
		return err
	})
}

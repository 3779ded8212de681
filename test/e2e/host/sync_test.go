//go:build e2e

package host

import (
	"context"
	"fmt"
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

// mkfs makes filesystems that write nothing by themselves afterwards.
var mkfs = map[string]string{"ext4": "mkfs.ext4 -q -E lazy_itable_init=0,lazy_journal_init=0", "xfs": "mkfs.xfs -q"}

// syncedFileSurvives has a host lose its power in the very moment in which an fsync of a file has
// returned. Filesystems end it with one block that the device has to make stable before it answers
// (FUA), not with a flush as a program does that writes to the device itself.
func syncedFileSurvives(t *testing.T, lab *labtest.Lab, filesystem string) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{SizeBytes: 512 * mib, CacheBytes: 128 * mib})
	v.Lay(t)
	before := v.Connect(t, n1)
	if filesystem == "xfs" { // its log worker would write every 30 s; the power loss undoes this
		n1.Shell(t, "modprobe xfs && echo 720000 >/proc/sys/fs/xfs/xfssyncd_centisecs")
	}
	const at = "/run/synced"
	n1.Shell(t, fmt.Sprintf("%s %s && mkdir -p %s && mount -t %s %s %s && dd if=/dev/urandom of=/run/file bs=64k count=16 2>/dev/null",
		mkfs[filesystem], before.Device, at, filesystem, before.Device, at))
	sum := n1.Shell(t, "sha1sum < /run/file")
	// Nothing else is on its way that would make the last block stable, and none has a place in the
	// cache: overwriting one that has needs no new note of where it lies.
	n1.Shell(t, "sync && sleep 3")
	v.Flush(t, n1)

	// The kernel's own record of what is in the cache, right after an fsync and much later: nothing
	// may have been missing.
	n1.Shell(t, fmt.Sprintf("record() { dd if=/dev/drbd%d of=$1 bs=4k skip=%d count=512 iflag=direct 2>/dev/null; }\n"+
		"dd if=/run/file of=%s/first bs=64k conv=fsync 2>/dev/null && record /run/then && sleep 3 && record /run/later && "+
		"cmp /run/then /run/later && rm /run/then /run/later", v.Minor, metadataAt, at))

	v.WaitForPeer(t, n1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { // its answer is lost with the host
		_, _ = n1.Try(ctx, nil, "sh", "-c", "dd if=/run/file of="+at+"/file bs=64k conv=fsync && echo b >/proc/sysrq-trigger")
	}()
	lab.WaitForOff(t, n1)
	lab.Blocklist(t, before.ClientAddress)
	after := v.Connect(t, n2)
	n2.Shell(t, fmt.Sprintf("mkdir -p %s && mount -t %s %s %s", at, filesystem, after.Device, at))
	if got := n2.Shell(t, "sha1sum < "+at+"/file; ls -l "+at); got[:len(sum)] != sum {
		t.Errorf("the file that was synced has %s, not %s", got, sum)
	}
	n2.Shell(t, "umount "+at)
	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, n2)
	v.Remove(t, n2)
}

//go:build e2e

package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/test/labtest"
)

// metadataAt is where dm-writecache's superblock and entries begin, behind escached's own header:
// in blocks of 4 KiB, as dd counts.
const metadataAt = cache.HeaderBytes / cache.BlockBytes

var (
	saveSuperblock    = fmt.Sprintf("dd if=%%[1]s of=/tmp/superblock bs=4096 skip=%d count=1 iflag=direct 2>&1", metadataAt)
	zeroSuperblock    = fmt.Sprintf("dd if=/dev/zero of=%%[1]s bs=4096 seek=%d count=1 oflag=direct conv=notrunc 2>&1", metadataAt)
	restoreSuperblock = fmt.Sprintf("dd if=/tmp/superblock of=%%[1]s bs=4096 seek=%d count=1 oflag=direct conv=notrunc 2>&1", metadataAt)
	superblockIsZero  = fmt.Sprintf("dd if=%%[1]s bs=4096 skip=%d count=1 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c", metadataAt)
)

// onBoth runs a script on both replicas' disks, below DRBD: what a firmware bug or a careless
// operator does.
func onBoth(t *testing.T, v *labtest.Volume, script string) {
	t.Helper()
	for _, h := range v.Hosts {
		h.Shell(t, fmt.Sprintf(script, v.LogicalVolume()))
	}
}

func zeroedSuperblockIsRefused(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	acks := n1.Fill(t, v.Connect(t, n1).Device, 0, mib)
	v.Flush(t, n1)
	v.WaitForPeer(t, n1)
	v.Stop(t, n1)

	onBoth(t, v, saveSuperblock)
	onBoth(t, v, zeroSuperblock)
	for _, h := range []*labtest.Host{n1, n2} {
		refused(t, v, h, v.NextEpoch(t, h), escache.CodeCacheCorrupt)
		if bytes := h.Shell(t, fmt.Sprintf(superblockIsZero, v.LogicalVolume())); bytes != "0" {
			t.Errorf("%s: %s bytes were written over the zeroed superblock", h.Name, bytes)
		}
		mustNotBeAssembled(t, v, h)
	}
	onBoth(t, v, restoreSuperblock)
	n2.Verify(t, v.Connect(t, n2).Device, acks)
	v.Remove(t, n2)
}

// damagedCopyCondemnsNobody: the host with the damaged copy comes back first. If it were promoted
// before anybody looks, the arbiter would put the good copy on record as outdated.
func damagedCopyCondemnsNobody(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	acks := n1.Fill(t, v.Connect(t, n1).Device, 0, mib)
	v.Flush(t, n1)
	v.WaitForPeer(t, n1)
	v.Stop(t, n1)
	lab.PowerOff(t, n2)
	lab.WaitForOff(t, n2)
	n1.Shell(t, fmt.Sprintf(zeroSuperblock, v.LogicalVolume()))
	refused(t, v, n1, v.NextEpoch(t, n1), escache.CodeCacheCorrupt)
	mustNotBeAssembled(t, v, n1)
	status := v.Status(t, n1)
	if status.State != escache.StateError || status.Error == nil || status.Error.Code != escache.CodeCacheCorrupt || status.DirtyBytes != nil {
		t.Errorf("%s says %+v, error %+v", n1.Name, status, status.Error)
	}
	record, err := lab.Record(t.Context(), v.VolumeRef)
	if err != nil || len(record.Outdated) > 0 {
		t.Errorf("on record as outdated: %v, %v", record.Outdated, err)
	}
	lab.PowerOn(t, n2)
	n2.WaitForService(t, 2*time.Minute)
	v.WaitForStatus(t, n2, "the link is back", time.Minute, func(s escache.VolumeStatus) bool {
		return s.DiskState == escache.DiskUpToDate && len(s.Peers) == 1 && s.Peers[0].DiskState == escache.DiskUpToDate
	})
	device := v.Connect(t, n2).Device
	n2.Verify(t, device, acks)
	n2.Fill(t, device, 8*mib, mib) // with this the superblock is written again, on both disks
	v.WaitForStatus(t, n1, "the copy is in order again", time.Minute, func(s escache.VolumeStatus) bool {
		return s.State == escache.StateStandby && s.Error == nil
	})
	v.Remove(t, n2)
}

// damagedCopyIsNotCopied: both hosts lose their power under a writer, and the holder comes back first,
// with a damaged copy. By DRBD's metadata it was the last that wrote, so DRBD would copy what was hot
// there over the good copy as soon as the two are linked.
func damagedCopyIsNotCopied(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	connected := v.Connect(t, n1)
	writer := n1.StartWriter(t, connected.Device, labtest.Writes{Span: 4 * mib})
	writer.WaitForMore(t, 50, time.Minute)
	v.WaitForPeer(t, n1)
	lab.PowerOff(t, n1)
	lab.PowerOff(t, n2)
	acks := writer.Lost(t)
	lab.Blocklist(t, connected.ClientAddress)

	lab.PowerOn(t, n1)
	n1.WaitForService(t, 2*time.Minute)
	n1.Damage(t, fmt.Sprintf(zeroSuperblock, v.LogicalVolume()))
	if _, err := n1.API.DevConnect(t.Context(), v.ConnectRequest(v.NextEpoch(t, n1))); labtest.CodeOf(err) == "" {
		t.Errorf("the damaged copy was connected, or not refused: %v", err)
	}
	lab.PowerOn(t, n2)
	n2.WaitForService(t, 2*time.Minute)
	v.WaitForStatus(t, n2, "it knows whether it has missed anything", 3*time.Minute, func(s escache.VolumeStatus) bool {
		return s.DiskState == escache.DiskUpToDate || s.DiskState == escache.DiskConsistent
	})
	if bytes := n2.Shell(t, fmt.Sprintf(superblockIsZero, v.LogicalVolume())); bytes == "0" {
		t.Errorf("the damage was copied to %s", n2.Name)
	}
	device := v.Connect(t, n2).Device
	n2.Verify(t, device, acks)
	n2.Fill(t, device, 8*mib, mib)
	v.WaitForPeer(t, n2)
	v.Remove(t, n2)
}

func mustNotBeAssembled(t *testing.T, v *labtest.Volume, h *labtest.Host) {
	t.Helper()
	status := v.Status(t, h)
	if status.Device != "" || status.Role != escache.RoleSecondary || status.ClientAddress != "" {
		t.Errorf("%s: half of a device is left after the refusal: %+v", h.Name, status)
	}
}

func foreignCacheIsRefused(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	mine, foreign := lab.NewVolume(t, labtest.VolumeSpec{}), lab.NewVolume(t, labtest.VolumeSpec{})
	acks := map[*labtest.Volume]labtest.Acks{}
	for _, v := range []*labtest.Volume{mine, foreign} {
		v.Lay(t)
		acks[v] = n1.Fill(t, v.Connect(t, n1).Device, 0, mib)
		v.Flush(t, n1)
		v.Stop(t, n1)
	}
	const copyWhole = "dd if=%s of=%s bs=1M count=4 iflag=direct oflag=direct conv=notrunc 2>&1"
	onBoth(t, mine, "dd if=%s of=/tmp/mine bs=1M count=4 iflag=direct 2>&1")
	for _, h := range mine.Hosts {
		h.Shell(t, fmt.Sprintf(copyWhole, foreign.LogicalVolume(), mine.LogicalVolume()))
	}
	refused(t, mine, n1, mine.NextEpoch(t, n1), escache.CodeIdentityMismatch)
	mustNotBeAssembled(t, mine, n1)
	for _, h := range mine.Hosts {
		h.Shell(t, fmt.Sprintf("cmp -n 4194304 %s %s", foreign.LogicalVolume(), mine.LogicalVolume()))
	}
	onBoth(t, mine, "dd if=/tmp/mine of=%s bs=1M count=4 oflag=direct conv=notrunc 2>&1; rm /tmp/mine")
	for v, acks := range acks {
		n1.Verify(t, v.Connect(t, n1).Device, acks)
		v.Remove(t, n1)
	}
}

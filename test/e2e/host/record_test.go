//go:build e2e

package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/test/labtest"
)

// firstData is where the data of the first record is in a new log, in blocks of 4 KiB, as dd counts: behind the header of the disk, the
// superblocks and the record's own header.
const firstData = metadataAt + record.Superblocks + 1

var (
	zeroRecord   = fmt.Sprintf("dd if=/dev/zero of=%%[1]s bs=4096 seek=%d count=1 oflag=direct conv=notrunc 2>&1", firstData)
	recordIsZero = fmt.Sprintf("dd if=%%[1]s bs=4096 skip=%d count=1 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c", firstData)
)

// damagedRecordIsNotCopied is damagedCopyIsNotCopied for a log of which one record has decayed: its superblocks are in order.
func damagedRecordIsNotCopied(t *testing.T, lab *labtest.Lab) {
	if labtest.Engine() != escache.EngineLog {
		t.Skip("it needs ENGINE=log")
	}
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	connected := v.Connect(t, n1)
	acks := n1.Fill(t, connected.Device, 0, 4*mib) // several records, and not enough for write-back to begin
	v.WaitForPeer(t, n1)
	lab.PowerOff(t, n1)
	lab.PowerOff(t, n2)
	lab.WaitForOff(t, n1)
	lab.Blocklist(t, connected.ClientAddress)

	lab.PowerOn(t, n1)
	n1.WaitForService(t, 2*time.Minute)
	n1.Damage(t, fmt.Sprintf(zeroRecord, v.LogicalVolume()))
	if _, err := n1.API.DevConnect(t.Context(), v.ConnectRequest(v.NextEpoch(t, n1))); labtest.CodeOf(err) == "" {
		t.Errorf("the damaged copy was connected, or not refused: %v", err)
	}
	known, err := lab.Record(t.Context(), v.VolumeRef)
	if err != nil || len(known.Outdated) != 1 || known.Outdated[0] != n1.Name {
		t.Errorf("on record as outdated: %v, %v", known.Outdated, err)
	}
	lab.PowerOn(t, n2)
	n2.WaitForService(t, 2*time.Minute)
	v.WaitForStatus(t, n2, "it knows whether it has missed anything", 3*time.Minute, func(s escache.VolumeStatus) bool {
		return s.DiskState == escache.DiskUpToDate || s.DiskState == escache.DiskConsistent
	})
	if bytes := n2.Shell(t, fmt.Sprintf(recordIsZero, v.LogicalVolume())); bytes == "0" {
		t.Errorf("the damage was copied to %s", n2.Name)
	}
	device := v.Connect(t, n2).Device
	n2.Verify(t, device, acks)
	v.WaitForPeer(t, n2)
	v.Remove(t, n2)
}

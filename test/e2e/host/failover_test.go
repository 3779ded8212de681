//go:build e2e

package host

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

const (
	mib = 1 << 20
	// rebootLimit is for an emulated machine on a busy one.
	rebootLimit = 5 * time.Minute
)

// failover is the promise of the whole project: what was acknowledged survives the power loss of
// the host that acknowledged it, although Ceph has not got any of it yet; and the host that returns
// is a full member again.
func failover(t *testing.T, lab *labtest.Lab, bytes int64, writing bool) {
	n1, n2, n3 := lab.Hosts[0], lab.Hosts[1], lab.Hosts[2]
	line := labtest.NewTimeline()
	// Write-back starts by itself when half of a cache is dirty, so this one is larger than twice
	// the data.
	v := lab.NewVolume(t, labtest.VolumeSpec{SizeBytes: 96 * mib, CacheBytes: 2*bytes + 32*mib})
	v.Lay(t)
	line.Mark("replicas on n1 and n2")
	before := v.Connect(t, n1)
	line.Mark("connected on n1")
	acks := n1.Fill(t, before.Device, 0, bytes)
	line.Mark("written with n1's acknowledgements")

	if used := v.ImageBytes(t); used != 0 {
		t.Fatalf("Ceph has %d bytes of it already, so nothing would be proven", used)
	}
	alone, unmap := n3.MapAlone(t, v)
	n3.MustDiffer(t, alone, acks)
	unmap()
	line.Mark("shown that Ceph has none of it")

	var writer *labtest.Writer
	if writing {
		writer = n1.StartWriter(t, before.Device, labtest.Writes{Offset: 80 * mib, Span: 4 * mib})
		writer.WaitForMore(t, 50, time.Minute)
		line.Mark("writer is running")
	}
	v.WaitForPeer(t, n1)
	lab.PowerOff(t, n1)
	line.Mark("n1 is without power")
	if writing {
		acks = append(acks, writer.Lost(t)...)
		line.Mark("writer is known to be gone")
	}
	lab.Blocklist(t, before.ClientAddress)
	line.Mark("n1's client is on the blocklist")
	after := v.Connect(t, n2)
	line.Mark("taken over: device on n2")
	n2.Verify(t, after.Device, acks)
	line.Mark("every acknowledged block is right on n2")

	// The survivor is used on, so the one that returns is stale.
	acks = append(acks, n2.Fill(t, after.Device, 88*mib, 4*mib)...)
	v.Flush(t, n2)
	v.Stop(t, n2)
	line.Mark("flushed and stopped on n2")
	alone, unmap = n3.MapAlone(t, v)
	n3.Verify(t, alone, acks)
	unmap()
	line.Mark("the image alone has every block")

	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	line.Mark("n1 is back")
	v.WaitForPeer(t, n2)
	line.Mark("n1 is synced")
	again := v.Connect(t, n1)
	n1.Verify(t, again.Device, acks)
	line.Mark("every block is right on n1")
	v.Remove(t, n1)
	line.Mark("removed")
	line.Print(t)
}

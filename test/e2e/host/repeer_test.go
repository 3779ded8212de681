//go:build e2e

package host

import (
	"math"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

// redundancyComesBackOnTheThirdHost: n2 is lost while a writer runs on n1; n3 takes n2's place
// without a pause; then n1 is lost too, and n3 has every write that was ever acknowledged. Before
// n3 is there, n2 returns and calls at the port it remembers.
func redundancyComesBackOnTheThirdHost(t *testing.T, lab *labtest.Lab) {
	n1, n2, n3 := lab.Hosts[0], lab.Hosts[1], lab.Hosts[2]
	line := labtest.NewTimeline()
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	before := v.Connect(t, n1)
	acks := n1.Fill(t, before.Device, 0, 4*mib)
	writer := n1.StartWriter(t, before.Device, labtest.Writes{Offset: 8 * mib, Span: 4 * mib, Pause: 10 * time.Millisecond})
	writer.WaitForMore(t, 20, time.Minute)
	line.Mark("writer runs on n1, copy on n2")

	lab.PowerOff(t, n2)
	v.WaitForStatus(t, n1, "runs alone", noticeLimit, func(s escache.VolumeStatus) bool {
		return !s.IOSuspended && len(s.Peers) == 1 && s.Peers[0].DiskState == "Outdated"
	})
	line.Mark("n2 is without power, n1 goes on alone")
	mark := writer.Count()
	v.Replace(t, n2, n3)
	v.LayOn(t, n1)
	writer.WaitForMore(t, 20, time.Minute)
	line.Mark("n1 waits for n3")
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.WaitForStatus(t, n2, "is up", noticeLimit, func(s escache.VolumeStatus) bool { return s.DiskState == escache.DiskConsistent })
	strangerIsTurnedAway(t, v, n1, n2)
	line.Mark("n2 is back and turned away")

	v.Join(t, n3)
	took := v.WaitForPeer(t, n1)
	line.Mark("n3 is synchronised")
	writer.WaitForMore(t, 20, time.Minute)
	t.Logf("n3 was current %s after it was laid; the slowest write since n2 was replaced took %s", took, writer.Acks()[mark:].Slowest())

	lab.PowerOff(t, n1)
	acks = append(acks, writer.Lost(t)...)
	lab.Blocklist(t, before.ClientAddress)
	after := v.Connect(t, n3)
	line.Mark("n1 is without power, taken over on n3")
	n3.Verify(t, after.Device, acks)
	line.Mark("every acknowledged write is on n3")
	// n2 has the old epoch of a partner it is no more, and is not on record any more as anything.
	refused(t, v, n2, v.Epoch(), escache.CodeOutdated, escache.CodeFencingRefused, escache.CodeImageInUse)

	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, n3)
	line.Mark("n1 is back and synchronised")
	if err := n2.API.DiscardReplica(t.Context(), v.VolumeRef, math.MaxInt64); err != nil {
		t.Errorf("delete what n2 has left: %v", err)
	}
	v.Remove(t, n3)
	line.Print(t)
}

// strangerIsTurnedAway looks for a while whether a former partner is taken for the present one.
func strangerIsTurnedAway(t *testing.T, v *labtest.Volume, h, stranger *labtest.Host) {
	t.Helper()
	const looks = 20
	for range looks {
		for _, h := range []*labtest.Host{h, stranger} {
			s := v.Status(t, h)
			if len(s.Peers) != 1 || s.Peers[0].ConnectionState == "Connected" || s.Peers[0].DiskState == "UpToDate" {
				t.Fatalf("%s is connected, and its partner is not there: %+v", h.Name, s)
			}
		}
		time.Sleep(500 * time.Millisecond)
	}
}

//go:build e2e

package host

import (
	"fmt"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// noticeLimit is how long DRBD takes to notice a silent peer (its own limits are 2 s), on a machine
// that may be busy.
const noticeLimit = time.Minute

func frozen(s escache.VolumeStatus) bool { return s.IOSuspended }

// written returns a volume that is connected on a host, and written to there.
func written(t *testing.T, lab *labtest.Lab, h *labtest.Host) (*labtest.Volume, string, *labtest.Writer) {
	t.Helper()
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	device := v.Connect(t, h).Device
	writer := h.StartWriter(t, device, labtest.Writes{Span: 4 * mib})
	writer.WaitForMore(t, 20, time.Minute)
	return v, device, writer
}

func cutOffPrimaryFreezes(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v, device, writer := written(t, lab, n1)

	lab.Cut(t, n1)
	noticed := v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	// The arbiter is given the time in which it would have answered, and more.
	writer.Rests(t, 8*time.Second)
	lab.Heal(t)
	resumed := writer.WaitForMore(t, 20, time.Minute)
	v.WaitForPeer(t, n1)
	acks := writer.Stop(t)
	t.Logf("frozen after %s, went on %s after the network was back", noticed, resumed)
	n1.Verify(t, device, acks)
	v.Remove(t, n1)
}

func grantedPrimaryGoesOnAlone(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, _, writer := written(t, lab, n1)

	lab.CutFrom(t, n1, n2)
	v.WaitForStatus(t, n1, "runs alone", noticeLimit, func(s escache.VolumeStatus) bool {
		return !s.IOSuspended && !labtest.Redundant(s) && len(s.Peers) == 1 && s.Peers[0].DiskState == "Outdated"
	})
	writer.WaitForMore(t, 20, time.Minute)
	v.MustBeOutdated(t, n2)
	// The one that was left behind must not be taken, whoever asks.
	refused(t, v, n2, v.Epoch()+1, escache.CodeOutdated, escache.CodeFencingRefused, escache.CodeImageInUse)

	acks := writer.Stop(t)
	v.Flush(t, n1)
	v.Stop(t, n1)
	v.WaitForStatus(t, n1, "says without its peer that nothing is dirty", noticeLimit, func(s escache.VolumeStatus) bool {
		return s.State == escache.StateStandby && s.DirtyBytes != nil && *s.DirtyBytes == 0
	})

	lab.Heal(t)
	v.WaitForPeer(t, n1)
	// After the resync n2 is current again: what it lacked is there.
	n2.Verify(t, v.Connect(t, n2).Device, acks)
	v.Remove(t, n2)
	t.Logf("slowest write, through the loss of the peer: %s", acks.Slowest())
}

// frozenDuringAFlushGoesOn: the flush has the volume, hangs in the frozen I/O, and ends only when the arbiter is asked again.
func frozenDuringAFlushGoesOn(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	device := v.Connect(t, n1).Device
	acks := n1.Fill(t, device, 0, 8*mib)

	lab.StallCeph(t)
	const timeout = 5 * time.Minute
	flushed := make(chan error, 1)
	go func() {
		answer, err := n1.API.Flush(t.Context(), escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: int(timeout.Seconds())})
		if err == nil && !answer.Clean {
			err = fmt.Errorf("the answer is %+v", answer)
		}
		flushed <- err
	}()
	v.WaitForStatus(t, n1, "is flushing", noticeLimit, func(s escache.VolumeStatus) bool { return s.State == escache.StateFlushing })
	lab.CutSome(t, n1, labclient.Cut{From: labclient.CutControlPlane})
	lab.PowerOff(t, n2)
	v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	lab.ResumeCeph(t)
	const rest = 15 * time.Second // longer than Ceph takes, and than until the arbiter is asked again
	time.Sleep(rest)
	if s := v.Status(t, n1); !s.IOSuspended || len(flushed) > 0 {
		t.Errorf("it goes on without the arbiter: %+v", s)
	}
	lab.Heal(t)
	v.WaitForStatus(t, n1, "runs alone", noticeLimit, func(s escache.VolumeStatus) bool { return !s.IOSuspended })
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, n1)
	n1.Verify(t, device, acks)
	v.Remove(t, n1)
}

// staleReplicaIsNotPromoted: n2 misses writes, then n1 is lost too, and n2 returns alone. It is the
// only replica there is, and must not be used.
func staleReplicaIsNotPromoted(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	connected := v.Connect(t, n1)
	acks := n1.Fill(t, connected.Device, 0, mib)
	lab.PowerOff(t, n2)
	v.WaitForStatus(t, n1, "runs alone", noticeLimit, func(s escache.VolumeStatus) bool {
		return !s.IOSuspended && len(s.Peers) == 1 && s.Peers[0].DiskState == "Outdated"
	})
	acks = append(acks, n1.Fill(t, connected.Device, 0, mib)...)
	lab.PowerOff(t, n1)
	lab.Blocklist(t, connected.ClientAddress)

	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.MustBeOutdated(t, n2)
	// Even when it is put on record as the one that may write, by somebody who did not look.
	refused(t, v, n2, v.NextEpoch(t, n2), escache.CodeOutdated, escache.CodeFencingRefused)
	mustNotBeAssembled(t, v, n2)

	// Once more, with nobody to ask when it boots: it comes up without a link.
	lab.PowerOff(t, n2)
	lab.Cut(t, n2)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.WaitForStatus(t, n2, "is up without a link", noticeLimit, func(s escache.VolumeStatus) bool {
		return s.DiskState == escache.DiskConsistent && len(s.Peers) == 1 && s.Peers[0].ConnectionState == escache.LinkStandAlone
	})
	lab.Heal(t)

	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	device := v.Connect(t, n1).Device
	n1.Verify(t, device, acks)
	v.WaitForPeer(t, n1)
	v.Remove(t, n1)
}

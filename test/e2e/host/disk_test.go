//go:build e2e

package host

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// secondsDiskFails: nobody but the host itself tells that its copy is not current any more. It does
// not need csi-node, which these hosts do not have.
func secondsDiskFails(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, device, writer := written(t, lab, n1)

	lab.FailDisk(t, n2)
	v.WaitForStatus(t, n1, "says that its peer has no disk", noticeLimit, func(s escache.VolumeStatus) bool { return !labtest.Redundant(s) })
	v.WaitUntilOutdated(t, n2, noticeLimit)
	writer.WaitForMore(t, 20, time.Minute)
	acks := writer.Stop(t)
	comesBack(t, lab, v, n2, n1)
	n1.Verify(t, device, acks)
	v.Remove(t, n1)
}

// peerWithoutDiskIsLost: the peer's copy takes nothing, and is on record as outdated, so there is
// nothing to ask when the peer is lost. I/O must not be frozen for it: DRBD 8.4 can lose a flush that
// is under way then, and the device hangs.
func peerWithoutDiskIsLost(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, device, writer := written(t, lab, n1)
	asBefore := slowFlush(t, n1)

	lab.FailDisk(t, n2)
	v.WaitUntilOutdated(t, n2, noticeLimit)
	v.WaitForStatus(t, n1, "may go on alone", noticeLimit, func(s escache.VolumeStatus) bool { return s.MayGoOnAlone })
	labtest.WaitForCommand(t, "DRBD is told not to freeze, after the arbiter has answered", noticeLimit, func(ctx context.Context) error {
		options, err := n1.Try(ctx, nil, "drbdsetup", "show")
		if err == nil && !strings.Contains(options, "resource-only") {
			err = errors.New(options)
		}
		return err
	})
	lab.CutSome(t, n1, labclient.Cut{From: labclient.CutControlPlane})
	lab.PowerOff(t, n2)
	v.WaitForStatus(t, n1, "has lost its peer", noticeLimit, func(s escache.VolumeStatus) bool { return !s.Peers[0].Linked() })
	writer.WaitForMore(t, 20, time.Minute)
	lab.Heal(t)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, n1)

	// From here on n1 is frozen again when it loses its peer, until that is on record. Flushes are fast
	// again, or exchangeStops would happen here.
	asBefore()
	lab.Cut(t, n1)
	v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	lab.Heal(t)
	writer.WaitForMore(t, 20, time.Minute)
	v.WaitForPeer(t, n1)
	n1.Verify(t, device, writer.Stop(t))
	v.Remove(t, n1)
}

// exchangeStops: the link comes back while DRBD still writes down that it goes on alone. The ends then
// tell each other different generations, and wait for each other in the exchange of bitmaps. That is a
// matter of luck, so there are several tries.
func exchangeStops(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v, device, writer := written(t, lab, n1)
	undo := slowFlush(t, n1)

	const tries, settled = 6, 5 * time.Second // a good exchange takes less than one second
	stopped := false
	for range tries {
		lab.Cut(t, n1)
		v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
		lab.Heal(t)
		writer.WaitForMore(t, 20, time.Minute)
		time.Sleep(settled)
		stopped = v.Status(t, n1).Peers[0].ConnectionState == escache.LinkWFBitMapS
		if took := v.WaitForPeer(t, n1); stopped {
			t.Logf("redundant again after %s", settled+took)
			break
		}
	}
	writer.WaitForMore(t, 20, time.Minute)
	undo()
	n1.Verify(t, device, writer.Stop(t))
	v.Remove(t, n1)
	if !stopped {
		t.Skipf("the exchange went well %d times", tries)
	}
}

// slowFlush makes each flush of the disk of a host's only volume take long, so that one is under way
// at nearly any moment. It returns what undoes that.
func slowFlush(t *testing.T, h *labtest.Host) (undo func()) {
	t.Helper()
	table := func(format string) {
		h.Shell(t, `set -eu
name=$(dmsetup ls | sed -n 's/^\(escache-escache--[^[:space:]]*\).*/\1/p')
dmsetup load "$name" --table "`+format+`"
dmsetup resume "$name"`)
	}
	have := strings.Fields(h.Shell(t, `modprobe dm-delay; dmsetup table --target linear | sed -n 's/^escache-escache--[^:]*: //p'`))
	if len(have) != 5 {
		t.Fatalf("the volume's table is %q", have)
	}
	sectors, on := have[1], have[3]+" "+have[4]
	table("0 " + sectors + " delay " + on + " 0 " + on + " 0 " + on + " 200")
	return func() { table(strings.Join(have, " ")) }
}

// secondsDiskFailsUnheard: n2 cannot reach its arbiter, so it leaves n1, which is frozen until its
// own arbiter has put n2 on record.
func secondsDiskFailsUnheard(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, device, writer := written(t, lab, n1)

	for _, h := range []*labtest.Host{n1, n2} {
		lab.CutSome(t, h, labclient.Cut{From: labclient.CutControlPlane})
	}
	lab.FailDisk(t, n2)
	took := v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	writer.Rests(t, 8*time.Second)
	t.Logf("frozen %s after the disk of the peer failed", took)
	lab.Heal(t)
	writer.WaitForMore(t, 20, time.Minute)
	v.WaitUntilOutdated(t, n2, time.Minute)
	acks := writer.Stop(t)
	comesBack(t, lab, v, n2, n1)
	n1.Verify(t, device, acks)
	v.Remove(t, n1)
}

// primarysDiskFails: nothing more is acknowledged before this copy is on record as outdated. Then
// both hosts lose their power, and the one with the old copy returns alone.
func primarysDiskFails(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, client, writer := writtenBy(t, lab, n1)

	v.WaitForPeer(t, n1)
	lab.CutSome(t, n1, labclient.Cut{From: labclient.CutControlPlane})
	lab.FailDisk(t, n1)
	v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	writer.Rests(t, 8*time.Second)
	lab.Heal(t)
	writer.WaitForMore(t, 20, time.Minute)
	v.MustBeOutdated(t, n1)
	acks := writer.Stop(t)

	lab.PowerOff(t, n2)
	lab.PowerOff(t, n1)
	lab.Blocklist(t, client)
	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	refused(t, v, n1, v.NextEpoch(t, n1), escache.CodeOutdated, escache.CodeFencingRefused)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	n2.Verify(t, v.Connect(t, n2).Device, acks)
	v.Remove(t, n2)
}

// markedDiskIsNotUsed: no arbiter hears that the disk has failed, and the Primary is lost at once.
// The copy is not used after a reboot, whatever the record says, because its host remembers.
func markedDiskIsNotUsed(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, client, writer := writtenBy(t, lab, n1)

	for _, h := range []*labtest.Host{n1, n2} {
		lab.CutSome(t, h, labclient.Cut{From: labclient.CutControlPlane})
	}
	lab.FailDisk(t, n2)
	v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	lab.PowerOff(t, n1)
	lab.PowerOff(t, n2)
	lab.Heal(t)
	acks := writer.Lost(t)
	lab.Blocklist(t, client)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	refused(t, v, n2, v.NextEpoch(t, n2), escache.CodeOutdated, escache.CodeFencingRefused)

	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	n1.Verify(t, v.Connect(t, n1).Device, acks)
	v.WaitForPeer(t, n1)
	v.Remove(t, n1)
}

// diskWorksAgain: DRBD uses the disk again without a reboot. What the peer alone has taken meanwhile
// must not be overwritten, and not be missing in the end.
func diskWorksAgain(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, device, writer := written(t, lab, n1)

	lab.FailDisk(t, n2)
	v.WaitUntilOutdated(t, n2, noticeLimit)
	writer.WaitForMore(t, 20, time.Minute)
	lab.MendDisk(t, n2)
	v.LayOn(t, n2)
	v.WaitForPeer(t, n1)
	acks := writer.Stop(t)
	n1.Verify(t, device, acks)

	v.Flush(t, n1)
	v.Stop(t, n1)
	lab.PowerOff(t, n1)
	n2.Verify(t, v.Connect(t, n2).Device, acks)
	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, n2)
	v.Remove(t, n2)
}

// comesBack reboots a host whose disk has failed. Its copy is filled again.
func comesBack(t *testing.T, lab *labtest.Lab, v *labtest.Volume, h, holder *labtest.Host) {
	t.Helper()
	lab.PowerOff(t, h)
	lab.PowerOn(t, h)
	h.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, holder)
}

// writtenBy is written, with the address of the Ceph client of the volume's device.
func writtenBy(t *testing.T, lab *labtest.Lab, h *labtest.Host) (*labtest.Volume, string, *labtest.Writer) {
	t.Helper()
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	connected := v.Connect(t, h)
	writer := h.StartWriter(t, connected.Device, labtest.Writes{Span: 4 * mib})
	writer.WaitForMore(t, 20, time.Minute)
	return v, connected.ClientAddress, writer
}

//go:build e2e

package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// bootedPeerGetsNothingUncounted: n1 loses n2 and its arbiter in the middle of writes, and is frozen. n2 is booted
// and comes back. DRBD then acknowledges the writes that were under way, and drops the link once more.
// At this very moment the link is cut for good, and n1 is lost. n2 lacks what was acknowledged.
func bootedPeerGetsNothingUncounted(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	before := v.Connect(t, n1)
	acks := n1.Fill(t, before.Device, 0, 4*mib)
	var writers []*labtest.Writer
	for i := range int64(4) {
		writers = append(writers, n1.StartWriter(t, before.Device, labtest.Writes{Offset: (4 + i) * 2 * mib, Span: 2 * mib}))
	}
	for _, w := range writers {
		w.WaitForMore(t, 10, time.Minute)
	}
	lab.CutSome(t, n1, labclient.Cut{From: labclient.CutControlPlane})
	lab.PowerOff(t, n2)
	v.WaitForStatus(t, n1, "is frozen", noticeLimit, frozen)
	frozenAt := map[*labtest.Writer]int{}
	for _, w := range writers {
		frozenAt[w] = w.Count()
	}

	const aborted = "Aborting Connect, can not thaw IO with an only Consistent peer"
	n1.Shell(t, fmt.Sprintf(`dmesg -c >/dev/null
(until dmesg | grep -q %q; do sleep 0.02; done; ip route add blackhole %s) </dev/null >/dev/null 2>&1 &`, aborted, n2.Address))
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	labtest.WaitFor(t, "n1 turns its booted peer away", rebootLimit, func(context.Context) error {
		if log := n1.Shell(t, "dmesg"); !strings.Contains(log, aborted) {
			return errors.New(log)
		}
		return nil
	})
	time.Sleep(3 * time.Second) // DRBD tries again after two, and the link is cut
	late := 0
	for _, w := range writers {
		late += w.Count() - frozenAt[w]
	}
	t.Logf("%d writes were acknowledged with the peer away; n1 is %+v", late, v.Status(t, n1))
	lab.PowerOff(t, n1)
	for _, w := range writers {
		acks = append(acks, w.Lost(t)...)
	}
	lab.Blocklist(t, before.ClientAddress)

	v.MustBeOutdated(t, n2)
	refused(t, v, n2, v.NextEpoch(t, n2), escache.CodeOutdated, escache.CodeFencingRefused)
	mustNotBeAssembled(t, v, n2)

	lab.Heal(t)
	lab.PowerOn(t, n1)
	n1.WaitForService(t, rebootLimit)
	n1.Verify(t, v.Connect(t, n1).Device, acks)
	v.WaitForPeer(t, n1)
	v.Remove(t, n1)
}

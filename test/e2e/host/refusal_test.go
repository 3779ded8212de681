//go:build e2e

package host

import (
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

func olderEpochIsRefused(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	first := v.Epoch()
	v.Connect(t, n1)
	v.Stop(t, n1)
	v.Connect(t, n1)

	refused(t, v, n1, first+1, escache.CodeStaleEpoch)
	if status := v.Status(t, n1); status.State != escache.StateConnected || status.Epoch != v.Epoch() {
		t.Errorf("the refused call changed something: %+v", status)
	}
	v.Stop(t, n1)
	refused(t, v, n1, first+1, escache.CodeStaleEpoch)
	v.Remove(t, nil)
}

// refused connects with an epoch and demands that it is refused for one of these reasons.
func refused(t *testing.T, v *labtest.Volume, h *labtest.Host, epoch int64, codes ...escache.Code) {
	t.Helper()
	answer, err := h.API.DevConnect(t.Context(), v.ConnectRequest(epoch))
	if err == nil {
		t.Fatalf("%s: connected with epoch %d: %+v", h.Name, epoch, answer)
	}
	if !slices.Contains(codes, labtest.CodeOf(err)) {
		t.Fatalf("%s: %v; want %v", h.Name, err, codes)
	}
}

func secondHostIsRefused(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	device := v.Connect(t, n1).Device
	acks := n1.Fill(t, device, 0, mib)
	epoch := v.Epoch()

	// Even a caller with a newer epoch, which a confused controller might be.
	v.WaitForPeer(t, n1)
	refused(t, v, n2, epoch+1, escache.CodeConnected)
	if watchers, err := v.Watchers(t.Context()); err != nil || len(watchers) != 1 {
		t.Errorf("watchers %v, %v; want n1 alone", watchers, err)
	}
	acks = append(acks, n1.Fill(t, device, mib, mib)...)
	n1.Verify(t, device, acks)

	v.Flush(t, n1)
	v.WaitForPeer(t, n1)
	v.Stop(t, n1)
	n2.Verify(t, v.Connect(t, n2).Device, acks)
	v.Remove(t, n2)
}

//go:build e2e

package host

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// smallAndIdle looks at an escached with a connected volume to which nothing happens.
func smallAndIdle(t *testing.T, lab *labtest.Lab) {
	const (
		look = 30 * time.Second
		// maxResident is in KiB. maxShare is of one emulated core, which is many times slower than a real one.
		maxResident = 40 << 10
		maxShare    = 0.05
	)
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	n1.Fill(t, v.Connect(t, n1).Device, 0, mib)

	before, begin := n1.ServiceUse(t), time.Now()
	select {
	case <-time.After(look):
	case <-t.Context().Done():
	}
	after, elapsed := n1.ServiceUse(t), time.Since(begin)
	share := (after.CPU - before.CPU).Seconds() / elapsed.Seconds()
	t.Logf("idle escached: %s; CPU %s a minute, %.2f %% of an emulated core", after, time.Duration(share*float64(time.Minute)), 100*share)
	if after.ResidentKiB > maxResident {
		t.Errorf("%d KiB resident, more than %d", after.ResidentKiB, maxResident)
	}
	if share > maxShare {
		t.Errorf("%.2f %% of a core for nothing, more than %.2f %%", 100*share, 100*maxShare)
	}
	v.Remove(t, n1)
}

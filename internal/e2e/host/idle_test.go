//go:build e2e

package host

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// smallAndIdle looks at an escached with a connected volume to which nothing happens. What CPU time means on an emulated host depends on
// what else its machine does, so doing nothing is compared with doing something in the same run: being asked for its status once a
// second.
func smallAndIdle(t *testing.T, lab *labtest.Lab) {
	const (
		look        = 30 * time.Second
		maxResident = 40 << 10 // KiB
	)
	n1 := lab.Hosts[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	n1.Fill(t, v.Connect(t, n1).Device, 0, mib)

	before := n1.ServiceUse(t)
	for range int(look / time.Second) {
		v.Status(t, n1)
	}
	between, begin := n1.ServiceUse(t), time.Now()
	select {
	case <-time.After(look):
	case <-t.Context().Done():
	}
	after, elapsed := n1.ServiceUse(t), time.Since(begin)
	asked, idle := between.CPU-before.CPU, after.CPU-between.CPU
	t.Logf("escached: %s; idle for %s it took %s CPU, %.2f %% of an emulated core; %.0f questions for its status take %s",
		after, elapsed.Round(time.Second), idle, 100*idle.Seconds()/elapsed.Seconds(), look.Seconds(), asked)
	if after.ResidentKiB > maxResident {
		t.Errorf("%d KiB resident, more than %d", after.ResidentKiB, maxResident)
	}
	if idle > asked {
		t.Errorf("doing nothing for %s took %s CPU, and answering once a second only %s", look, idle, asked)
	}
	v.Remove(t, n1)
}

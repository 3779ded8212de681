//go:build e2e

package host

import (
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

// cyclesVariable says how many cycles to run in all.
const cyclesVariable = "ESCACHE_E2E_CYCLES"

const defaultCycles = 200

// cyclesLeaveNothing lives the whole life of a cache over and over, one volume on each pair of
// hosts at the same time, and changing sides in between.
func cyclesLeaveNothing(t *testing.T, lab *labtest.Lab) {
	cycles := labtest.Number(t, cyclesVariable, defaultCycles)
	before := map[string]labtest.ServiceUse{}
	for _, h := range lab.Hosts {
		before[h.Name] = h.ServiceUse(t)
	}
	// The group returns when all its parallel tests are done.
	t.Run("side by side", func(t *testing.T) {
		for i, first := range lab.Hosts {
			pair := []*labtest.Host{first, lab.Hosts[(i+1)%len(lab.Hosts)]}
			t.Run(pair[0].Name+" and "+pair[1].Name, func(t *testing.T) {
				t.Parallel()
				v := lab.NewVolume(t, labtest.VolumeSpec{SizeBytes: 16 * mib, CacheBytes: 8 * mib, Hosts: pair})
				for n := i; n < cycles; n += len(lab.Hosts) {
					cycle(t, v, n)
				}
				v.RemoveImage(t)
			})
		}
	})
	for _, h := range lab.Hosts {
		after := h.ServiceUse(t)
		t.Logf("%s: escached before %s, after %s", h.Name, before[h.Name], after)
		// A handful of connections may be open at either time.
		if after.Files > before[h.Name].Files+10 {
			t.Errorf("%s: escached has %d files open, %d before", h.Name, after.Files, before[h.Name].Files)
		}
	}
}

func cycle(t *testing.T, v *labtest.Volume, n int) {
	t.Helper()
	h := v.Hosts[n%len(v.Hosts)]
	v.Lay(t)
	device := v.Connect(t, h).Device
	acks := h.Fill(t, device, int64(n%8)*mib, mib)
	v.Flush(t, h)
	h.Verify(t, device, acks)
	v.Stop(t, h)
	v.Drop(t)
}

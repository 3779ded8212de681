//go:build e2e

package node

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
)

// histogram is how many calls took at most so many seconds.
type histogram map[float64]int

func (h histogram) count() int { return h[math.Inf(1)] }

// above is how many took longer than a bound of the histogram.
func (h histogram) above(seconds float64) int { return h.count() - h[seconds] }

func (h histogram) without(before histogram) histogram {
	out := histogram{}
	for bound, n := range h {
		out[bound] = n - before[bound]
	}
	return out
}

// quantile is the lowest bound that so many have kept to.
func (h histogram) quantile(share float64) float64 {
	for _, bound := range slices.Sorted(maps.Keys(h)) {
		if float64(h[bound]) >= share*float64(h.count()) {
			return bound
		}
	}
	return math.NaN()
}

// unstages are all calls of NodeUnstageVolume on the host that ended well, how many were out of
// time and are repeated, as on a host with too little processor for its pods, and how many were
// refused.
func (c *crowd) unstages(t *testing.T) (h histogram, late, refused int) {
	t.Helper()
	h = histogram{}
	for line := range strings.Lines(c.shell(t, c.host, "wget -q -O - http://127.0.0.1:9810/metrics")) {
		const name = "escache_node_csi_call_seconds_"
		if !strings.HasPrefix(line, name) || !strings.Contains(line, `method="NodeUnstageVolume"`) {
			continue
		}
		labels, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		var n float64
		if _, err := fmt.Sscan(value, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		well := strings.Contains(labels, `code="OK"`)
		outOfTime := strings.Contains(labels, `code="DeadlineExceeded"`) || strings.Contains(labels, `code="Aborted"`)
		_, rest, bucket := strings.Cut(labels, `le="`)
		switch {
		case bucket && well:
			var bound float64
			if _, err := fmt.Sscan(strings.TrimSuffix(rest, `"`), &bound); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			h[bound] = int(n)
		case !strings.HasPrefix(line, name+"count") || well:
		case outOfTime:
			late += int(n)
		default:
			refused += int(n)
		}
	}
	return h, late, refused
}

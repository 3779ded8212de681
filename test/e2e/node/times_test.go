//go:build e2e

package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// times are what was measured, a value each round.
type times struct {
	names  []string
	values map[string][]time.Duration
}

func (s *times) add(name string, took time.Duration) {
	if s.values == nil {
		s.values = map[string][]time.Duration{}
	}
	if s.values[name] == nil {
		s.names = append(s.names, name)
	}
	s.values[name] = append(s.values[name], took)
}

func (s *times) print(rounds int) {
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(out, "\nTimes in Kubernetes, %d rounds\nmedian s\tmost s\t\n", rounds)
	for _, name := range s.names {
		all := slices.Sorted(slices.Values(s.values[name]))
		fmt.Fprintf(out, "%.2f\t%.2f\t  %s\n", all[len(all)/2].Seconds(), all[len(all)-1].Seconds(), name)
	}
	_ = out.Flush()
}

// spent is how long the calls of a method have taken on a host that ended well.
func (w *world) spent(t *testing.T, node, method string) time.Duration {
	t.Helper()
	for line := range strings.Lines(w.shell(t, node, "wget -q -O - http://127.0.0.1:9810/metrics")) {
		rest, found := strings.CutPrefix(line, fmt.Sprintf(`escache_node_csi_call_seconds_sum{code="OK",method=%q}`, method))
		if !found {
			continue
		}
		var seconds float64
		if _, err := fmt.Sscan(rest, &seconds); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		return time.Duration(seconds * float64(time.Second))
	}
	return 0
}

// TestTimes prints what the life of a pod with a volume takes, and how much of it is csi-node's.
func TestTimes(t *testing.T) {
	w := open(t)
	defer w.cleanUp(t)
	// Room for the most that a round makes dirty, below the mark from which the cache writes back
	// by itself.
	w.apply(t, w.class("times", "Immediate", "256Mi", "ext4"))
	rounds := labtest.Number(t, "ESCACHE_E2E_ROUNDS", 3)
	var s times
	for round := range rounds {
		name := fmt.Sprintf("times-%d", round)
		begin := time.Now()
		volume := w.claim(t, name, "e2e-node-times", "Filesystem", "512Mi")
		s.add("claim made → bound", time.Since(begin))
		node := w.volume(t, volume).Spec.Replicas[0]
		for turn, dirty := range []int{0, 16, 64} {
			pod := fmt.Sprintf("%s-%d", name, turn)
			before := w.spent(t, node, "NodeStageVolume")
			ready := w.pod(t, pod, node, name, "Filesystem", forever)
			staged := w.spent(t, node, "NodeStageVolume") - before
			if turn == 0 {
				s.add("pod made → Ready, the first time", ready)
				s.add("… of it NodeStage: connect, mkfs, mount", staged)
			} else {
				s.add("pod made → Ready, later", ready)
				s.add("… of it NodeStage: connect, mount", staged)
			}
			if dirty > 0 {
				w.in(t, pod, fmt.Sprintf("dd if=/dev/urandom of=/data/file bs=1M count=%d conv=fsync 2>/dev/null", dirty))
			}
			before = w.spent(t, node, "NodeUnstageVolume")
			gone := w.removePod(t, pod, volume)
			s.add(fmt.Sprintf("pod deleted → detached, %d MiB dirty", dirty), gone)
			s.add(fmt.Sprintf("… of it NodeUnstage, %d MiB dirty", dirty), w.spent(t, node, "NodeUnstageVolume")-before)
		}
		w.kubectl(t, "delete", "pvc", name, "--timeout=120s")
	}
	w.nothingLeft(t)
	s.print(rounds)
}

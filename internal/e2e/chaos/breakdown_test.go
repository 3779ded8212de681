//go:build e2e

package chaos

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// What the same steps took by hand, from the loss of power to the mounted filesystem, and how much longer they may take here.
const (
	byHandLeast, byHandMost = 1.4, 2.1 // seconds
	allowed                 = 1.3
)

// takeOverRuns is how often the take-over is measured.
const takeOverRuns = 3

// TestTakeOverTimes takes a mounted volume over from a host that has lost its power, and prints what each step took. Kubernetes' own
// waiting is not in it. The times of the kernel's steps are those of the kernel's log.
func TestTakeOverTimes(t *testing.T) {
	if os.Getenv(coreVariable) != "" {
		t.Skip("not in the core")
	}
	lab := labtest.Open(t)
	var totals []float64
	for range takeOverRuns {
		t.Run("run", func(t *testing.T) { totals = append(totals, takeOverTimes(t, lab)) })
	}
	if t.Failed() {
		return
	}
	slices.Sort(totals)
	fmt.Printf("power loss to mounted elsewhere: %.2f to %.2f s; by hand it was %.1f to %.1f s, and %.1f times that is %.2f to %.2f s\n", totals[0],
		totals[len(totals)-1], byHandLeast, byHandMost, allowed, byHandLeast*allowed, byHandMost*allowed)
}

func takeOverTimes(t *testing.T, lab *labtest.Lab) float64 {
	s := &scene{T: t, lab: lab, n1: lab.Hosts[0], n2: lab.Hosts[1], n3: lab.Hosts[2]}
	s.open()
	s.n1.Shell(t, "mkfs.ext4 -q -E nodiscard "+s.device+" && mkdir -p /mnt/chaos && mount "+s.device+" /mnt/chaos && "+
		"dd if=/dev/urandom of=/mnt/chaos/data bs=1M count=16 conv=fsync 2>/dev/null")
	sum := s.n1.Shell(t, "sha256sum </mnt/chaos/data")
	s.n2.Shell(t, "mkdir -p /mnt/chaos; dmesg -c >/dev/null")
	clock := newClock(t, s.n2)

	begin := time.Now()
	s.powerOff(s.n1)
	off := time.Since(begin).Seconds()
	s.lab.Blocklist(t, s.client)
	fenced := time.Since(begin).Seconds()
	s.connect(s.n2)
	connected := time.Since(begin).Seconds()
	s.n2.Shell(t, "mount "+s.device+" /mnt/chaos")
	mounted := time.Since(begin).Seconds()

	if now := s.n2.Shell(t, "sha256sum </mnt/chaos/data"); now != sum {
		s.check.Lost++
		t.Errorf("the file is %s on n2, and was %s on n1", now, sum)
	}
	kernel := clock.events(t, s.n2, begin)
	fmt.Printf("power is off %.2f s; loss noticed %s; client fenced %.2f s; image mapped %s; promoted %s; assembled %.2f s; mounted %.2f s\n",
		off, kernel["noticed"], fenced, kernel["mapped"], kernel["promoted"], connected, mounted)
	s.n2.Shell(t, "umount /mnt/chaos")
	s.whole()
	s.finish()
	return mounted
}

// clock relates a host's kernel log to time here.
type clock struct {
	here  time.Time
	there float64 // seconds since the host's boot
}

func newClock(t *testing.T, h *labtest.Host) clock {
	t.Helper()
	before := time.Now()
	up := h.Shell(t, "cut -d' ' -f1 /proc/uptime")
	there, err := strconv.ParseFloat(up, 64)
	if err != nil {
		t.Fatal(err)
	}
	return clock{here: before.Add(time.Since(before) / 2), there: there}
}

// events are the steps that the kernel did, in seconds after begin.
func (c clock) events(t *testing.T, h *labtest.Host, begin time.Time) map[string]string {
	t.Helper()
	signs := map[string]string{"noticed": "peer( Primary -> Unknown", "mapped": "rbd: rbd", "promoted": "role( Secondary -> Primary"}
	found := map[string]string{"noticed": "?", "mapped": "?", "promoted": "?"}
	for line := range strings.Lines(h.Shell(t, "dmesg")) {
		stamp, text, _ := strings.Cut(strings.TrimPrefix(line, "["), "]")
		at, err := strconv.ParseFloat(strings.TrimSpace(stamp), 64)
		if err != nil {
			continue
		}
		for event, sign := range signs {
			if found[event] == "?" && strings.Contains(text, sign) {
				found[event] = fmt.Sprintf("%.2f s", c.here.Add(time.Duration((at-c.there)*float64(time.Second))).Sub(begin).Seconds())
			}
		}
	}
	return found
}

//go:build e2e

package host

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// killedAtEveryCrashPoint lives a volume's life once to learn which points each verb passes. Then
// it lives on until each verb was killed at each of its points: a verb is killed, repeated, killed
// at the next point it passes, and so on until it succeeds. What a repeat does not pass any more,
// because the restarted service has done it already, waits for the next life. Another volume is
// written to all the time.
func killedAtEveryCrashPoint(t *testing.T, lab *labtest.Lab) {
	n1 := lab.Hosts[0]
	bystander := lab.NewVolume(t, labtest.VolumeSpec{SizeBytes: 16 * mib, CacheBytes: 16 * mib})
	bystander.Lay(t)
	device := bystander.Connect(t, n1).Device
	writer := n1.StartWriter(t, device, labtest.Writes{Span: 2 * mib, Pause: 20 * time.Millisecond})
	before, err := n1.Residue(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	n1.TraceCrashPoints(t)
	left, points := map[string][]string{}, 0
	live(t, lab, func(string) bool { return true }, func(s step) {
		must(t, s)
		left[s.name] = verbPoints(n1.CrashPoints(t))
		t.Logf("%s passes %s", s.name, strings.Join(left[s.name], " "))
		if len(left[s.name]) == 0 {
			t.Errorf("%s passes no crash point", s.name)
		}
		points += len(left[s.name])
	})
	lives, killed := 1, 0
	for killed < points {
		already := killed
		live(t, lab, func(name string) bool { return len(left[name]) > 0 }, func(s step) {
			passed := killAndRepeat(t, n1, s, left[s.name])
			killed += len(left[s.name]) - len(passed)
			left[s.name] = passed
		})
		lives++
		if killed == already {
			t.Fatalf("a whole life passed none of the points that are left: %v", left)
		}
		mustEqualResidue(t, n1, before)
	}
	t.Logf("killed %d times in %d lives", killed, lives)
	acks := writer.Stop(t)
	t.Logf("the other volume took %d writes, the slowest %s", len(acks), acks.Slowest())
	n1.Verify(t, device, acks)
	bystander.Remove(t, n1)
}

// verbPoints leaves out what a starting escached passes.
func verbPoints(points []string) []string {
	return slices.DeleteFunc(points, func(p string) bool { return strings.HasPrefix(p, "recover/") })
}

func mustEqualResidue(t *testing.T, h *labtest.Host, before []string) {
	t.Helper()
	now, err := h.Residue(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(now, before) {
		t.Errorf("something was left behind: there is %q, before there was %q", now, before)
	}
}

func must(t *testing.T, s step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.call(ctx); err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
}

// killAndRepeat kills a verb at one point after the other and then lets it succeed. It returns the
// points that it did not get to.
func killAndRepeat(t *testing.T, h *labtest.Host, s step, points []string) (notPassed []string) {
	t.Helper()
	for _, point := range points {
		old := h.CrashAt(t, point)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		err := s.call(ctx)
		cancel()
		if err == nil && !h.Crashed(t) {
			// It succeeded without passing the point.
			notPassed = append(notPassed, point)
			continue
		}
		h.WaitForCrash(t, point, old)
		t.Logf("%s was killed at %s: %v", s.name, point, err)
	}
	must(t, s)
	return notPassed
}

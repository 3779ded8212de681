//go:build e2e

package host

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

// killedAtEveryCrashPoint lives a volume's life once to learn which points each verb passes. Then
// it lives on until each verb was killed at each of its points: a verb is killed, repeated, killed
// at the next point it passes, and so on until it succeeds. What a repeat does not pass any more,
// because the restarted service has done it already, waits for the next life. Another volume is
// written to all the time.
func killedAtEveryCrashPoint(t *testing.T, lab *labtest.Lab) {
	killedAt(t, lab, labtest.Engine(), func(name string) bool { return name != paused && name != endPause })
}

// killedInAPause is the same for the pause that a group snapshot makes. A log has a point of its own in it: the device rests
// already, and nothing but the record of the hold says that this ends.
func killedInAPause(t *testing.T, lab *labtest.Lab) {
	points := killedAt(t, lab, escache.EngineLog, func(name string) bool { return name == paused || name == endPause })
	if !slices.Contains(points[paused], "hold/paused") {
		t.Errorf("the pause passes only %q", points[paused])
	}
}

// killedAt returns the points that each wanted verb passes.
func killedAt(t *testing.T, lab *labtest.Lab, engine escache.Engine, wanted func(name string) bool) map[string][]string {
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
	left, passes, points := map[string][]string{}, map[string][]string{}, 0
	live(t, lab, engine, wanted, func(s step) {
		must(t, s)
		if !wanted(s.name) {
			n1.CrashPoints(t) // they are not the next verb's
			return
		}
		left[s.name] = verbPoints(n1.CrashPoints(t))
		t.Logf("%s passes %s", s.name, strings.Join(left[s.name], " "))
		if len(left[s.name]) == 0 {
			t.Errorf("%s passes no crash point", s.name)
		}
		passes[s.name] = slices.Clone(left[s.name])
		points += len(left[s.name])
	})
	lives, killed := 1, 0
	for killed < points {
		already := killed
		live(t, lab, engine, func(name string) bool { return len(left[name]) > 0 }, func(s step) {
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
	return passes
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

//go:build e2e

package host

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	api "github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/e2e/labtest"
)

// step is one verb in the life of a volume, and what is done between it and the next.
type step struct {
	name string
	call func(context.Context) error
	then func()
}

// life is every verb once, with data written in between so that each has something to lose.
type life struct {
	t    *testing.T
	lab  *labtest.Lab
	v    *labtest.Volume
	n1   *labtest.Host
	acks labtest.Acks
}

func (l *life) steps() []step {
	t, v, n1 := l.t, l.v, l.n1
	ref := v.VolumeRef
	device := "/dev/escache/" + v.String()
	epoch := v.NextEpoch(t, n1)
	write := func(at int64) func() {
		return func() { l.acks = append(l.acks, n1.Fill(t, device, at*mib, mib/2)...) }
	}
	nothing := func() {}
	grown := v.SizeBytes + 4*mib
	return []step{
		{"put replica", func(ctx context.Context) error { return n1.API.PutReplica(ctx, v.Request()) },
			func() { v.LayOn(t, v.Hosts[1]) }},
		{"dev_connect", func(ctx context.Context) error {
			_, err := n1.API.DevConnect(ctx, v.ConnectRequest(epoch))
			return err
		}, write(0)},
		{"mode writethrough", func(ctx context.Context) error { return n1.API.SetMode(ctx, ref, api.ModeWritethrough) }, write(1)},
		{"mode writeback", func(ctx context.Context) error { return n1.API.SetMode(ctx, ref, api.ModeWriteback) }, write(2)},
		{"hold", func(ctx context.Context) error {
			_, err := n1.API.Hold(ctx, ref, time.Minute)
			return err
		}, nothing},
		{"release", func(ctx context.Context) error { return n1.API.Release(ctx, ref) }, write(3)},
		{"resize", func(ctx context.Context) error { return n1.API.Resize(ctx, ref, grown) }, write(v.SizeBytes / mib)},
		{"flush", func(ctx context.Context) error {
			answer, err := n1.API.Flush(ctx, api.FlushRequest{VolumeRef: ref, TimeoutSeconds: 60})
			if err == nil && !answer.Clean {
				t.Errorf("flush: %+v", *answer)
			}
			return err
		}, func() { n1.Verify(t, device, l.acks) }},
		{"stop", func(ctx context.Context) error { return n1.API.Stop(ctx, ref) }, nothing},
		{"delete replica", func(ctx context.Context) error { return n1.API.DeleteReplica(ctx, ref, false) },
			func() { v.DropOn(t, v.Hosts[1]) }},
	}
}

// killedAtEveryCrashPoint lives a volume's life once to learn which points each verb passes, and then again and again: in the i-th life each verb is
// killed at its i-th point, and repeated. Another volume is written to all the time.
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
	points, most := map[string][]string{}, 0
	live(t, lab, func(s step) {
		must(t, s)
		points[s.name] = verbPoints(n1.CrashPoints(t))
		t.Logf("%s passes %s", s.name, strings.Join(points[s.name], " "))
		if len(points[s.name]) == 0 {
			t.Errorf("%s passes no crash point", s.name)
		}
		most = max(most, len(points[s.name]))
	})
	killed := 0
	for i := range most {
		live(t, lab, func(s step) {
			if i < len(points[s.name]) {
				killAndRepeat(t, n1, s, points[s.name][i])
				killed++
				return
			}
			must(t, s)
		})
		left, err := n1.Residue(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(left, before) {
			t.Errorf("life %d left something behind: %q, before it there was %q", i, left, before)
		}
	}
	t.Logf("killed %d times", killed)
	acks := writer.Stop(t)
	t.Logf("the other volume took %d writes, the slowest %s", len(acks), acks.Slowest())
	n1.Verify(t, device, acks)
	bystander.Remove(t, n1)
}

// verbPoints leaves out what a starting escached passes.
func verbPoints(points []string) []string {
	return slices.DeleteFunc(points, func(p string) bool { return strings.HasPrefix(p, "start/") || strings.HasPrefix(p, "boot/") })
}

// live makes an image, takes it through all steps, and looks whether Ceph has everything in the end.
func live(t *testing.T, lab *labtest.Lab, do func(step)) {
	t.Helper()
	v := lab.NewVolume(t, labtest.VolumeSpec{SizeBytes: 16 * mib, CacheBytes: 16 * mib})
	l := &life{t: t, lab: lab, v: v, n1: lab.Hosts[0]}
	for _, s := range l.steps() {
		if s.name == "resize" {
			lab.Command(t, "rbd", "--no-progress", "resize", "--size", "20M", v.String())
		}
		do(s)
		s.then()
	}
	alone, unmap := lab.Hosts[2].MapAlone(t, v)
	lab.Hosts[2].Verify(t, alone, l.acks)
	unmap()
	v.RemoveImage(t)
}

func must(t *testing.T, s step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := s.call(ctx); err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
}

func killAndRepeat(t *testing.T, h *labtest.Host, s step, point string) {
	t.Helper()
	old := h.CrashAt(t, point)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// The client repeats a PUT by itself, so no error does not mean that nothing happened: WaitForCrash says that.
	err := s.call(ctx)
	h.WaitForCrash(t, point, old)
	t.Logf("%s was killed at %s: %v", s.name, point, err)
	must(t, s)
}

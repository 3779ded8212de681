//go:build e2e

package controller

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"
)

// takeOver uses the default lease settings, where it measures. That these let another replica lead within 20 s is tested in
// played time, with csi-controller's options.
func takeOver(t *testing.T, w *world) {
	t.Run("killed", func(t *testing.T) {
		a, b := w.launch(t, "a"), w.launch(t, "b")
		first := leader(t, time.Minute, a, b)
		second := map[*driver]*driver{a: b, b: a}[first]
		until(t, func() error { return first.create(t.Context(), "pvc-before") })
		if second.serves(t.Context()) {
			t.Fatal("both serve")
		}
		begun := time.Now()
		first.kill()
		for second.create(t.Context(), "pvc-after") != nil {
			if time.Since(begun) > time.Minute {
				t.Fatal("nobody serves a minute later")
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Logf("kill -9 of the leader to the next CreateVolume: %s", time.Since(begun).Round(10*time.Millisecond))
		until(t, func() error { return second.delete(t.Context(), "pvc-before") })
		until(t, func() error { return second.delete(t.Context(), "pvc-after") })
	})
	t.Run("ended in order", func(t *testing.T) {
		a, b := w.launch(t, "a"), w.launch(t, "b")
		first := leader(t, time.Minute, a, b)
		second := map[*driver]*driver{a: b, b: a}[first]
		begun := time.Now()
		must(t, first.command.Process.Signal(syscall.SIGTERM))
		if !waitEnded(first) {
			t.Error("the leader does not end")
		}
		leader(t, time.Minute, second)
		t.Logf("SIGTERM of the leader to the next one ready: %s", time.Since(begun).Round(10*time.Millisecond))
	})
	t.Run("paused", func(t *testing.T) { paused(t, w) })
}

// paused stops the leader in the middle of many calls. While it is stopped another leads and
// removes everything that the stopped one was making; then the old one goes on. Whatever it did
// then would be left behind.
func paused(t *testing.T, w *world) {
	old := leader(t, time.Minute, w.launch(t, "old", brief...))
	until(t, func() error { return old.create(t.Context(), "pvc-first") }) // it has its connections to Ceph now
	const volumes = 100
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	calls := make(chan struct{})
	go func() {
		defer close(calls)
		inParallel(volumes, volumes, func(i int) { _ = old.create(ctx, fmt.Sprintf("pvc-%d", i)) })
	}()
	eventually(t, 30*time.Second, func() bool { return len(w.volumes(t)) > volumes/3 }, func() string { return "nothing is created" })
	must(t, old.command.Process.Signal(syscall.SIGSTOP))
	young := leader(t, time.Minute, w.launch(t, "young", brief...))
	if old.serves(t.Context()) {
		t.Error("the paused leader answers")
	}
	t.Logf("paused with %d records and %d images", len(w.volumes(t)), len(w.images(t)))
	until(t, func() error { return young.delete(t.Context(), "pvc-first") })
	inParallel(8, volumes, func(i int) { until(t, func() error { return young.delete(t.Context(), fmt.Sprintf("pvc-%d", i)) }) })
	w.empty(t)

	must(t, old.command.Process.Signal(syscall.SIGCONT))
	<-calls
	select {
	case <-old.ended:
	case <-time.After(20 * time.Second):
		t.Errorf("the old leader goes on:\n%s", old.log())
	}
	time.Sleep(time.Second)
	for _, v := range w.volumes(t) {
		t.Errorf("the old leader has written %s", v.Name)
	}
	for _, image := range w.images(t) {
		t.Errorf("the old leader has made image %s", image)
	}
	eventually(t, time.Minute, func() bool { return young.alive() && young.serves(t.Context()) }, func() string {
		return "the new leader does not serve any more"
	})
}

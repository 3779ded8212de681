//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	// looksEvery is often enough to see what lasts, and seldom enough for emulated hosts.
	looksEvery = time.Second
	lookTime   = 3 * time.Second
)

// watch looks at a volume all the time a row runs. It holds true at any moment that at most one host
// can write to the image, that the epoch only grows, and that nothing is dirty while the truth is in
// Ceph.
type watch struct {
	s      *scene
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	epoch   int64
	since   time.Time // when the epoch was first seen
	two     bool      // what is dirty has two copies
	paused  bool
	looks   int
	answers int
	wrong   []string // what is not reported yet

	reported int
}

func (s *scene) startWatch() *watch {
	ctx, cancel := context.WithCancel(s.Context())
	w := &watch{s: s, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			if !w.isPaused() {
				w.look(ctx)
			}
			select {
			case <-ctx.Done():
			case <-time.After(looksEvery):
			}
		}
	}()
	return w
}

// report fails the test for what was wrong since the last report.
func (w *watch) report(t labtest.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.wrong {
		t.Errorf("volume %s: %s", w.s.volume, text)
	}
	w.reported += len(w.wrong)
	w.wrong = nil
}

// end reports what was wrong.
func (w *watch) end(t labtest.T) {
	if w == nil {
		return // the row did not get as far
	}
	w.cancel()
	<-w.done
	w.report(t)
	t.Logf("looked %d times at the volume; %d answers of hosts", w.looks, w.answers)
}

// pause is for what a row does on purpose: to set the record back, or to delete it.
func (w *watch) pause() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = true
}

// twoCopies says whether it holds true from now on, too, that what is dirty has two current copies.
func (w *watch) twoCopies(holds bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.two = holds
}

// again forgets the epoch that was seen.
func (w *watch) again() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused, w.epoch = false, 0
}

func (w *watch) isPaused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.paused
}

func (w *watch) foundf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	const most = 5
	if len(w.wrong) < most && !w.paused {
		w.wrong = append(w.wrong, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
	}
}

func (w *watch) look(ctx context.Context) {
	before := w.record(ctx)
	reports := map[string]escache.VolumeStatus{}
	for _, h := range w.s.lab.Hosts {
		if status, ok := w.ask(ctx, h); ok {
			reports[h.Name] = status
		}
	}
	w.oneWriter(ctx, reports)
	after := w.record(ctx)
	w.mu.Lock()
	w.looks++
	w.answers += len(reports)
	w.mu.Unlock()
	if before == nil || after == nil {
		return
	}
	w.exposed(after, reports)
	if before.Status.Authority != v1alpha1.AuthorityCeph || after.Status.Authority != v1alpha1.AuthorityCeph ||
		before.Status.Epoch != after.Status.Epoch || before.Status.AttachedNode != after.Status.AttachedNode {
		return
	}
	for name, status := range reports {
		if after.Spec.HasReplica(name) && !after.Status.IsOutdated(name) && status.DirtyBytes != nil && *status.DirtyBytes > 0 {
			w.foundf("the truth is in Ceph in epoch %d, and %d bytes are dirty on %s", after.Status.Epoch, *status.DirtyBytes, name)
		}
	}
}

// takenOverTime is how long a dirty volume that was just attached may have one copy (docs/limits.md, "evacuate
// protects second copies by draining"). looksTime is for looks that wait for a host without power.
const (
	takenOverTime = 10 * time.Second
	looksTime     = 2 * lookTime
)

// exposed finds a dirty volume with one current copy. The record was read after the holder was asked: a copy is
// on record as current before write-back begins, and Ceph has everything before the copy goes.
func (w *watch) exposed(v *cacheVolume, reports map[string]escache.VolumeStatus) {
	w.mu.Lock()
	settled := w.two && time.Since(w.since) > takenOverTime+looksTime
	w.mu.Unlock()
	holder, answers := reports[v.Status.AttachedNode]
	if !settled || !answers || holder.DirtyBytes == nil || *holder.DirtyBytes == 0 {
		return
	}
	if slices.ContainsFunc(v.Spec.Replicas, v.Status.IsOutdated) || !labtest.Redundant(holder) {
		w.foundf("%d bytes are dirty on %s in epoch %d; outdated %q, peers %+v", *holder.DirtyBytes, v.Status.AttachedNode, v.Status.Epoch,
			v.Status.Outdated, holder.Peers)
	}
}

// record reads the record, and compares its epoch with that of before.
func (w *watch) record(ctx context.Context) *cacheVolume {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	v, err := w.s.api.Volume(ctx, w.s.volume)
	if err != nil {
		return nil // the API server may be away
	}
	w.mu.Lock()
	last := w.epoch
	if v.Status.Epoch > last {
		w.epoch, w.since = v.Status.Epoch, time.Now()
	}
	w.mu.Unlock()
	if v.Status.Epoch < last {
		w.foundf("the epoch has gone back from %d to %d", last, v.Status.Epoch)
	}
	return v
}

// ask is not told by a host that is dead, frozen, or busy.
func (w *watch) ask(ctx context.Context, h *labtest.Host) (escache.VolumeStatus, bool) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	all, err := h.API.Status(ctx)
	if err != nil {
		return escache.VolumeStatus{}, false
	}
	for _, v := range all.Volumes {
		if v.VolumeRef == w.s.image.VolumeRef {
			return v, true
		}
	}
	return escache.VolumeStatus{}, false
}

func writes(s escache.VolumeStatus) bool {
	return s.Role == escache.RolePrimary && s.ClientAddress != ""
}

// oneWriter looks once more where two hosts seem to have the volume: they were asked one after the
// other. What counts in the end is which of their clients Ceph lets write.
func (w *watch) oneWriter(ctx context.Context, reports map[string]escache.VolumeStatus) {
	var holders []*labtest.Host
	for _, h := range w.s.lab.Hosts {
		if first, ok := reports[h.Name]; !ok || !writes(first) {
			continue
		}
		if again, ok := w.ask(ctx, h); ok && writes(again) && again.ClientAddress == reports[h.Name].ClientAddress {
			holders = append(holders, h)
		}
	}
	if len(holders) < 2 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	fenced, err := blocklist(ctx)
	if err != nil {
		w.foundf("two hosts have the volume, and nobody knows who is fenced: %v", err)
		return
	}
	var free []string
	for _, h := range holders {
		if address := reports[h.Name].ClientAddress; !strings.Contains(fenced, address+" ") {
			free = append(free, h.Name+" "+address)
		}
	}
	if len(free) > 1 {
		w.foundf("two hosts can write: %q; the blocklist is %q", free, fenced)
	}
}

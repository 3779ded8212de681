// Package watch polls the local escached for the volumes that are connected on this node. A change
// becomes a condition on the CacheVolume and one Event on its claim; the current state is exported
// as metrics. While nothing changes, the Kubernetes API is neither read nor written, but for the
// records of volumes without a cache, or without their second copy.
package watch

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Cache is the local escached.
type Cache interface {
	Status(ctx context.Context) (*escache.Status, error)
	VolumeStatus(ctx context.Context, ref escache.VolumeRef) (*escache.VolumeStatus, error)
	Abandon(ctx context.Context, ref escache.VolumeRef, epoch int64) error
}

// Kube is the Kubernetes API. Its reads bypass any cache.
type Kube interface {
	Volume(ctx context.Context, name string) (*v1alpha1.CacheVolume, error)
	VolumeOf(ctx context.Context, ref escache.VolumeRef) (*v1alpha1.CacheVolume, error)
	PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error)
	Emit(ctx context.Context, node string, v *v1alpha1.CacheVolume, e kube.Event) error
}

// Options are what a Watch needs.
type Options struct {
	Node  string
	Cache Cache
	Kube  Kube
	// Progress reads the I/O counters of the image below a device from the kernel; false if it
	// cannot.
	Progress func(device string) (blockdev.Progress, bool)
	// Whole, if not nil, is called when this node was seen to write to both copies of a volume, in the attachment of this
	// epoch. The time is before that.
	Whole  func(volume escache.VolumeRef, epoch int64, at time.Time)
	Logger *slog.Logger
	Now    func() time.Time
}

// Watch polls the local escached and reports what changes.
type Watch struct {
	Options

	mu      sync.Mutex
	volumes map[escache.VolumeRef]*volume
	// silentSince is when escached stopped answering; zero while it answers.
	silentSince time.Time
	answeredAt  time.Time
	woken       chan struct{}
}

// New returns a Watch.
func New(o Options) *Watch {
	return &Watch{Options: o, volumes: map[escache.VolumeRef]*volume{}, woken: make(chan struct{}, 1)}
}

const (
	// Interval is the time between two polls. Two of them and an API call take less than five
	// seconds.
	Interval = 2 * time.Second
	// idleInterval is the time between two polls while no volume is connected. Wake ends it early.
	idleInterval = 10 * time.Second
	// A poll makes escached ask the kernel, which takes long on a host that is short of processor
	// time. The pause is at least so many times as long as the poll, up to maxPause, so that polls
	// take at most a fifth of the time.
	pausePerPoll = 4
	maxPause     = 20 * time.Second
	// pollTime bounds one poll, with the reports that follow from it.
	pollTime = 20 * time.Second
	// silenceGrace is how long escached may be silent, as in an upgrade, before its volumes are
	// reported as unwatched.
	silenceGrace = 4 * time.Second
	// connectGrace is how long after connecting a volume may still be looking for its peer.
	connectGrace = 6 * time.Second
)

// Run polls until the context ends.
func (w *Watch) Run(ctx context.Context) error {
	for {
		begun := time.Now()
		w.poll(ctx)
		pause := time.NewTimer(w.pause(time.Since(begun)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		case <-w.woken:
			pause.Stop()
		}
	}
}

// Wake starts the next poll at once, because a volume is being staged. It does not block.
func (w *Watch) Wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *Watch) pause(poll time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	least := Interval
	if len(w.volumes) == 0 {
		least = idleInterval
	}
	return min(max(least, poll*pausePerPoll), maxPause)
}

// Silence returns for how long escached has not answered; zero while it does.
func (w *Watch) Silence() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silentSince.IsZero() {
		return 0
	}
	return w.Now().Sub(w.silentSince)
}

// Seen returns what the last poll has found of each connected volume whose CacheVolume is known, by its name.
func (w *Watch) Seen() map[string]escache.VolumeStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := map[string]escache.VolumeStatus{}
	for _, v := range w.volumes {
		if v.name != "" {
			seen[v.name] = v.status
		}
	}
	return seen
}

// poll asks escached once and handles every connected volume. It does not hold the lock during
// calls.
func (w *Watch) poll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	asked := w.Now()
	status, err := w.Cache.Status(ctx)
	now := w.Now()
	if err != nil {
		w.reportSilence(ctx, now, err)
		return
	}
	w.mu.Lock()
	w.silentSince, w.answeredAt = time.Time{}, now
	w.mu.Unlock()
	seen := map[escache.VolumeRef]bool{}
	for _, s := range status.Volumes {
		if !health.IsConnected(s) {
			continue
		}
		seen[s.VolumeRef] = true
		if health.IsWhole(s) && w.Whole != nil {
			w.Whole(s.VolumeRef, s.Epoch, asked)
		}
		w.observe(ctx, w.volume(s.VolumeRef, now), s, now)
	}
	for ref, v := range w.snapshot() {
		if !seen[ref] {
			w.clearProblems(ctx, v)
			w.mu.Lock()
			delete(w.volumes, ref)
			w.mu.Unlock()
		}
	}
}

func (w *Watch) volume(ref escache.VolumeRef, now time.Time) *volume {
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.volumes[ref]
	if !ok {
		v = newVolume(ref, now)
		w.volumes[ref] = v
	}
	return v
}

func (w *Watch) snapshot() map[escache.VolumeRef]*volume {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make(map[escache.VolumeRef]*volume, len(w.volumes))
	maps.Copy(all, w.volumes)
	return all
}

// reportSilence marks all volumes that were connected as unwatched, once escached has been silent
// for silenceGrace.
func (w *Watch) reportSilence(ctx context.Context, now time.Time, err error) {
	w.mu.Lock()
	if w.silentSince.IsZero() {
		w.silentSince = now
	}
	since := w.silentSince
	w.mu.Unlock()
	if now.Sub(since) < silenceGrace-Interval/2 {
		return
	}
	for _, v := range w.snapshot() {
		finding := health.Finding{
			Reason: health.EscachedSilent, Condition: v1alpha1.ConditionHealthy,
			Message: "escached on " + w.Node + " does not answer; I/O goes on, but nothing watches the volume: " + err.Error(),
		}
		w.report(ctx, v, append(v.open(v1alpha1.ConditionRedundant, v1alpha1.ConditionSynced), finding), nil, now)
	}
}

// observe handles the status of one connected volume.
func (w *Watch) observe(ctx context.Context, v *volume, s escache.VolumeStatus, now time.Time) {
	if err := w.identify(ctx, v, s, now); err != nil {
		if !errors.Is(err, errWait) {
			w.Logger.WarnContext(ctx, "cannot find the CacheVolume of a connected image", "pool", s.Pool, "image", s.Image, "error", err)
		}
		w.store(v, s)
		return
	}
	findings := health.Findings(s, w.stalled(v, s, now))
	w.store(v, s)
	if now.Sub(v.since) < connectGrace {
		findings = v.confirmed(findings)
	}
	w.report(ctx, v, findings, &s, now)
	w.updateOutdated(ctx, v, s, now)
	w.abandonSuperseded(ctx, v, s, now)
}

func (w *Watch) store(v *volume, s escache.VolumeStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v.status = s
	if v.object != nil {
		v.name = v.object.Name
	}
}

// errWait: the last search for the CacheVolume is too recent to repeat it.
var errWait = errors.New("searched a short while ago")

// lookupInterval is the time between two searches for a CacheVolume that does not exist.
const lookupInterval = 30 * time.Second

// identify finds the CacheVolume of an image, once per attachment.
func (w *Watch) identify(ctx context.Context, v *volume, s escache.VolumeStatus, now time.Time) error {
	if v.object != nil && v.object.Status.Epoch >= s.Epoch {
		return nil
	}
	if now.Before(v.lookupAfter) {
		return errWait
	}
	object, err := w.Kube.VolumeOf(ctx, v.ref)
	if err != nil {
		v.lookupAfter = now.Add(lookupInterval)
		if errors.Is(err, kube.ErrUnavailable) {
			v.lookupAfter = now.Add(Interval)
		}
		return err
	}
	v.adopt(object)
	return nil
}

// stalled reports whether I/O to Ceph is in flight and none has completed during the last two
// polls.
func (w *Watch) stalled(v *volume, s escache.VolumeStatus, now time.Time) bool {
	p, ok := w.Progress(s.Device)
	if !ok || p.InFlight == 0 || v.progress == nil || p.Completed != v.progress.Completed {
		v.progress, v.progressAt = &p, now
		return false
	}
	return now.Sub(v.progressAt) >= 2*Interval-Interval/4
}

// Recorded hands the watch a CacheVolume that another part of this process has just written.
func (w *Watch) Recorded(object *v1alpha1.CacheVolume) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v, ok := w.volumes[cachevolume.Ref(object)]; ok {
		v.newer = object
	}
}

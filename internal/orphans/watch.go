package orphans

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Watch searches for orphans at an interval while this process leads, and exports their number.
type Watch struct {
	search  Search
	every   time.Duration
	log     *slog.Logger
	count   *prometheus.GaugeVec
	foreign prometheus.Gauge
	gaps    prometheus.Gauge
	failed  bool // the last search, and the log says so
}

// NewWatch returns a Watch, and registers its metrics. Add it to controller-runtime's manager.
func NewWatch(search Search, every time.Duration, log *slog.Logger, registry prometheus.Registerer) *Watch {
	count := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "escache", Name: "orphans",
		Help: "Images without a CacheVolume or ReadOnlyVolume (kind image) and CacheVolumes or ReadOnlyVolumes " +
			"without a PersistentVolume (kind volume).",
	}, []string{"kind"})
	foreign := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "escache", Name: "foreign_images",
		Help: "Images that begin with the image prefix and are marked as another Kubernetes cluster's.",
	})
	gaps := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "escache", Name: "orphans_search_incomplete",
		Help: "1 while the search for orphans fails, or cannot look into every pool.",
	})
	registry.MustRegister(count, foreign, gaps)
	return &Watch{search: search, every: every, log: log, count: count, foreign: foreign, gaps: gaps}
}

// NeedLeaderElection returns true: only the leader searches.
func (*Watch) NeedLeaderElection() bool { return true }

// Start searches until the context ends.
func (w *Watch) Start(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		w.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// look searches once. It logs a failure when it begins and when it ends, not each time.
func (w *Watch) look(ctx context.Context) {
	found, err := w.search.Find(ctx)
	if ctx.Err() != nil {
		return
	}
	switch {
	case err != nil && !w.failed:
		w.log.Warn("not every orphan can be found; the next line about it is when that is over", "error", err)
	case err == nil && w.failed:
		w.log.Info("the search for orphans is complete again")
	}
	w.failed = err != nil
	w.gaps.Set(0)
	if w.failed {
		w.gaps.Set(1)
	}
	if err == nil || errors.Is(err, ErrIncomplete) {
		w.count.WithLabelValues("image").Set(float64(len(found.Images) + len(found.Unmarked)))
		w.foreign.Set(float64(len(found.Foreign)))
		w.count.WithLabelValues("volume").Set(float64(len(found.Volumes)))
	}
}

package orphans

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Watch searches from time to time while this process leads, and shows how many orphans there are.
type Watch struct {
	search Search
	every  time.Duration
	log    *slog.Logger
	count  *prometheus.GaugeVec
}

// NewWatch returns a Runnable for controller-runtime's manager.
func NewWatch(search Search, every time.Duration, log *slog.Logger, registry prometheus.Registerer) *Watch {
	count := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "escache", Name: "orphans",
		Help: "Images without a CacheVolume (kind image) and CacheVolumes without a PersistentVolume (kind volume).",
	}, []string{"kind"})
	registry.MustRegister(count)
	return &Watch{search: search, every: every, log: log, count: count}
}

// NeedLeaderElection keeps standbys from searching too.
func (*Watch) NeedLeaderElection() bool { return true }

// Start searches until the context ends.
func (w *Watch) Start(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		found, err := w.search.Find(ctx)
		if err != nil && ctx.Err() == nil {
			w.log.Warn("search for orphans incomplete", "error", err)
		}
		if err == nil {
			w.count.WithLabelValues("image").Set(float64(len(found.Images)))
			w.count.WithLabelValues("volume").Set(float64(len(found.Volumes)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

package orphans

import (
	"context"
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
}

// NewWatch returns a Watch, and registers its metrics. Add it to controller-runtime's manager.
func NewWatch(search Search, every time.Duration, log *slog.Logger, registry prometheus.Registerer) *Watch {
	count := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "escache", Name: "orphans",
		Help: "Images without a CacheVolume (kind image) and CacheVolumes without a PersistentVolume (kind volume).",
	}, []string{"kind"})
	foreign := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "escache", Name: "foreign_images",
		Help: "Images that begin with the image prefix and are marked as another Kubernetes cluster's.",
	})
	registry.MustRegister(count, foreign)
	return &Watch{search: search, every: every, log: log, count: count, foreign: foreign}
}

// NeedLeaderElection returns true: only the leader searches.
func (*Watch) NeedLeaderElection() bool { return true }

// Start searches until the context ends.
func (w *Watch) Start(ctx context.Context) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for {
		found, err := w.search.Find(ctx)
		if err != nil && ctx.Err() == nil {
			w.log.Warn("search for orphans is incomplete", "error", err)
		}
		if err == nil {
			w.count.WithLabelValues("image").Set(float64(len(found.Images) + len(found.Unmarked)))
			w.foreign.Set(float64(len(found.Foreign)))
			w.count.WithLabelValues("volume").Set(float64(len(found.Volumes)))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

package emptier

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// PoolState is what a pool's trash holds of this Kubernetes cluster's.
type PoolState struct {
	Cluster string
	Pool    string
	Images  int
	Oldest  time.Time // when the oldest of them was deleted

	deleted map[string]time.Time // by ID
}

// States returns the state of each pool whose trash was listed. Cluster is empty.
func (e *Emptier) States() []PoolState {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := slices.Clone(e.states)
	for i := range out {
		out[i].Images = len(out[i].deleted)
		for _, at := range out[i].deleted {
			if out[i].Oldest.IsZero() || at.Before(out[i].Oldest) {
				out[i].Oldest = at
			}
		}
		out[i].deleted = nil
	}
	return out
}

// record remembers what a list has shown. A pool whose trash has become empty stays, with 0.
func (e *Emptier) record(images []Image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.states {
		e.states[i].deleted = map[string]time.Time{}
	}
	for _, image := range images {
		at := slices.IndexFunc(e.states, func(s PoolState) bool { return s.Pool == image.Pool })
		if at < 0 {
			at = len(e.states)
			e.states = append(e.states, PoolState{Pool: image.Pool, deleted: map[string]time.Time{}})
		}
		e.states[at].deleted[image.ID] = image.Deleted
	}
}

func (e *Emptier) forget(image Image) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.states {
		if s.Pool == image.Pool {
			delete(s.deleted, image.ID)
		}
	}
}

var (
	imagesDesc = prometheus.NewDesc("escache_trash_images",
		"Deleted images in the pool's trash whose space is not free yet.", []string{"cluster", "pool"}, nil)
	oldestDesc = prometheus.NewDesc("escache_trash_oldest_seconds",
		"Time since the oldest image in the pool's trash was deleted; 0 if there is none.", []string{"cluster", "pool"}, nil)
)

// Collector exports the states of all clusters.
type Collector struct {
	states func() []PoolState
	now    func() time.Time
}

// NewCollector returns a collector of what states returns.
func NewCollector(states func() []PoolState, now func() time.Time) *Collector {
	return &Collector{states: states, now: now}
}

// Describe implements prometheus.Collector.
func (*Collector) Describe(out chan<- *prometheus.Desc) { out <- imagesDesc; out <- oldestDesc }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.states() {
		age := 0.0
		if s.Images > 0 {
			age = max(0, c.now().Sub(s.Oldest).Seconds())
		}
		out <- prometheus.MustNewConstMetric(imagesDesc, prometheus.GaugeValue, float64(s.Images), s.Cluster, s.Pool)
		out <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age, s.Cluster, s.Pool)
	}
}

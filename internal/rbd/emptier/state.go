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
	// Bytes is what those that were looked at have, less what was purged of them.
	Bytes int64

	deleted map[string]deleted // by ID
}

type deleted struct {
	at   time.Time
	left int64 // bytes; 0 if it was not looked at
}

// States returns the state of each pool whose trash was listed. Cluster is empty.
func (e *Emptier) States() []PoolState {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := slices.Clone(e.states)
	for i := range out {
		out[i].Images = len(out[i].deleted)
		for _, d := range out[i].deleted {
			out[i].Bytes += d.left
			if out[i].Oldest.IsZero() || d.at.Before(out[i].Oldest) {
				out[i].Oldest = d.at
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
	known := map[key]int64{}
	for i, s := range e.states {
		for id, d := range s.deleted {
			known[key{s.Pool, id}] = d.left
		}
		e.states[i].deleted = map[string]deleted{}
	}
	for _, image := range images {
		at := slices.IndexFunc(e.states, func(s PoolState) bool { return s.Pool == image.Pool })
		if at < 0 {
			at = len(e.states)
			e.states = append(e.states, PoolState{Pool: image.Pool, deleted: map[string]deleted{}})
		}
		e.states[at].deleted[image.ID] = deleted{image.Deleted, known[keyOf(image)]}
	}
}

// left remembers how much there is left of an image.
func (e *Emptier) left(image Image, bytes int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.states {
		if d, ok := s.deleted[image.ID]; ok && s.Pool == image.Pool {
			s.deleted[image.ID] = deleted{d.at, bytes}
		}
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
	bytesDesc = prometheus.NewDesc("escache_trash_bytes",
		"Provisioned size of the deleted images in the pool's trash that were looked at, less what is removed already.",
		[]string{"cluster", "pool"}, nil)
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
func (*Collector) Describe(out chan<- *prometheus.Desc) {
	out <- imagesDesc
	out <- bytesDesc
	out <- oldestDesc
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.states() {
		age := 0.0
		if s.Images > 0 {
			age = max(0, c.now().Sub(s.Oldest).Seconds())
		}
		out <- prometheus.MustNewConstMetric(imagesDesc, prometheus.GaugeValue, float64(s.Images), s.Cluster, s.Pool)
		out <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(s.Bytes), s.Cluster, s.Pool)
		out <- prometheus.MustNewConstMetric(oldestDesc, prometheus.GaugeValue, age, s.Cluster, s.Pool)
	}
}

// Package histogram counts values in ranges, on the way of every request of a volume: it takes no lock and
// no memory, and the ranges are as many as were asked for.
package histogram

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Histogram is safe for concurrent use.
type Histogram struct {
	unit   float64
	bounds []int64
	counts []atomic.Uint64
	sum    atomic.Int64
}

// New returns a histogram whose ranges end at the bounds, which are in order. Its snapshots multiply
// bounds and sum by unit.
func New(unit float64, bounds ...int64) *Histogram {
	return &Histogram{unit: unit, bounds: bounds, counts: make([]atomic.Uint64, len(bounds)+1)}
}

// NewLatency returns a histogram for durations of I/O, whose snapshots are in seconds: from what memory and
// a network take to what only trouble takes.
func NewLatency() *Histogram {
	var bounds []int64
	for _, d := range []time.Duration{
		25 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
		time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
		50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second,
	} {
		bounds = append(bounds, int64(d))
	}
	return New(time.Nanosecond.Seconds(), bounds...)
}

// Observe counts a value.
func (h *Histogram) Observe(value int64) {
	i, _ := slices.BinarySearch(h.bounds, value)
	h.counts[i].Add(1)
	h.sum.Add(value)
}

// Since counts the time since begun.
func (h *Histogram) Since(begun time.Time) { h.Observe(int64(time.Since(begun))) }

// Snapshot returns the counts of now. Values that are counted meanwhile may be in it, or in a part of it.
func (h *Histogram) Snapshot() cache.Histogram {
	s := cache.Histogram{Sum: float64(h.sum.Load()) * h.unit}
	for _, b := range h.bounds {
		s.Bounds = append(s.Bounds, float64(b)*h.unit)
	}
	for i := range h.counts {
		s.Counts = append(s.Counts, h.counts[i].Load())
	}
	return s
}

package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics measures csi-controller's calls: those of CSI that it serves, and its own to Ceph and to
// escached.
type Metrics struct {
	csi     *prometheus.HistogramVec
	ceph    *prometheus.HistogramVec
	escache *prometheus.HistogramVec
}

// NewMetrics registers the metrics and returns them.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "escache", Subsystem: "controller", Name: name, Help: help,
			Buckets: []float64{.002, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, labels)
		registry.MustRegister(h)
		return h
	}
	m := &Metrics{
		csi:     histogram("csi_call_seconds", "Duration of CSI calls, by method and gRPC code.", "method", "code"),
		ceph:    histogram("ceph_call_seconds", "Duration of calls to Ceph, by operation and result.", "operation", "result"),
		escache: histogram("escached_call_seconds", "Duration of calls to the hosts' escached, by call and result.", "call", "result"),
	}
	m.ceph.WithLabelValues("blocklist_add", "ok") // there from the start, so that rate() sees the first one
	return m
}

// ObserveCeph counts a call to Ceph and how long it took.
func (m *Metrics) ObserveCeph(operation, result string, took time.Duration) {
	m.ceph.WithLabelValues(operation, result).Observe(took.Seconds())
}

// ObserveEscached counts a call to a host's escached and how long it took.
func (m *Metrics) ObserveEscached(call, result string, took time.Duration) {
	m.escache.WithLabelValues(call, result).Observe(took.Seconds())
}

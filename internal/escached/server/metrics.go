package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measures holds the metrics of API calls.
type measures struct {
	seconds  *prometheus.HistogramVec
	failures *prometheus.CounterVec
}

func newMeasures() *measures {
	return &measures{
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "escached_operation_seconds", Help: "Duration of API calls.", Buckets: []float64{0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100},
		}, []string{"operation"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "escached_operation_failures_total", Help: "API calls that failed, by the error's code.",
		}, []string{"operation", "code"}),
	}
}

func (m *measures) done(operation string, took time.Duration, code string) {
	m.seconds.WithLabelValues(operation).Observe(took.Seconds())
	if code != "" {
		m.failures.WithLabelValues(operation, code).Inc()
	}
}

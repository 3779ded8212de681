package node

import "github.com/prometheus/client_golang/prometheus"

// NewCallMetric registers the histogram of CSI calls, by method and gRPC code, and returns it.
func NewCallMetric(registry prometheus.Registerer) *prometheus.HistogramVec {
	calls := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "escache_node_csi_call_seconds", Help: "Duration of CSI calls, by method and gRPC code.",
		Buckets: []float64{.005, .02, .1, .5, 1, 2, 5, 10, 30, 60, 120},
	}, []string{"method", "code"})
	registry.MustRegister(calls)
	return calls
}

package metrics

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func scraped(t *testing.T, m *cache.Measures) string {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(New(
		func(context.Context) (escache.Node, error) { return escache.Node{}, nil },
		func(context.Context) ([]volume.Reading, error) {
			v := volume.Reading{Connected: true, Device: cache.State{Known: true, Measures: m}}
			v.Pool, v.Image = "rbd", "v1"
			return []volume.Reading{v}, nil
		},
	).Collectors()...)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(r, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

func TestAHistogramOfAVolumeIsExportedWithCountsUpToEachBound(t *testing.T) {
	got := scraped(t, &cache.Measures{
		Flushes:  cache.Histogram{Bounds: []float64{0.001, 0.01}, Counts: []uint64{5, 2, 1}, Sum: 0.5},
		Recovery: 1500 * time.Millisecond, WrittenBack: 8192,
	})
	for _, want := range []string{
		`
# TYPE escached_volume_flush_seconds histogram
escached_volume_flush_seconds_bucket{image="v1",pool="rbd",le="0.001"} 5
escached_volume_flush_seconds_bucket{image="v1",pool="rbd",le="0.01"} 7
escached_volume_flush_seconds_bucket{image="v1",pool="rbd",le="+Inf"} 8
escached_volume_flush_seconds_sum{image="v1",pool="rbd"} 0.5
escached_volume_flush_seconds_count{image="v1",pool="rbd"} 8
`, `
# TYPE escached_volume_log_recovery_seconds gauge
escached_volume_log_recovery_seconds{image="v1",pool="rbd"} 1.5
`, `
# TYPE escached_volume_written_back_bytes_total counter
escached_volume_written_back_bytes_total{image="v1",pool="rbd"} 8192
`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nis not in\n%s", want, got)
		}
	}
	// A process that is older than a histogram does not know of it.
	if strings.Contains(got, "escached_volume_read_seconds") {
		t.Errorf("a histogram without ranges is exported:\n%s", got)
	}
}

func TestNothingIsExportedOfAnEngineThatDoesNotMeasure(t *testing.T) {
	got := scraped(t, nil)
	if !strings.Contains(got, "escached_volume_dirty_bytes") || strings.Contains(got, "escached_volume_log_") ||
		strings.Contains(got, "escached_volume_written_back_bytes_total") {
		t.Error(got)
	}
}

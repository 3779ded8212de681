// Package metrics exports the state of this host and its volumes, and what flushes have done.
package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/exported"
)

// Metrics has the engine's metrics. Flush calls update two of them. Everything else is read from
// the kernel at each scrape.
type Metrics struct {
	node     func(context.Context) (escache.Node, error)
	readings func(context.Context) ([]volume.Reading, error)

	flushSeconds *prometheus.HistogramVec
	flushBytes   *prometheus.CounterVec
}

// New returns the metrics. node and readings read the state of host and volumes.
func New(
	node func(context.Context) (escache.Node, error), readings func(context.Context) ([]volume.Reading, error),
) *Metrics {
	m := &Metrics{
		node: node, readings: readings,
		flushSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "escached_flush_seconds", Help: "Duration of flush calls, by whether the cache was clean at the end.",
			Buckets: []float64{0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000},
		}, []string{"clean"}),
		flushBytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "escached_flushed_bytes_total",
			Help: "Bytes written back by flush calls. Divided by escached_flush_seconds_sum: the flush rate.",
		}, []string{"pool", "image"}),
	}
	for _, clean := range []string{"true", "false"} {
		m.flushSeconds.WithLabelValues(clean) // exported from the start, so that the first flush is an increase
	}
	return m
}

// Flushed counts one flush call: how long it took, how much it wrote back, and whether the cache
// was clean at the end.
func (m *Metrics) Flushed(v volume.Volume, took time.Duration, bytes int64, clean bool) {
	m.flushSeconds.WithLabelValues(strconv.FormatBool(clean)).Observe(took.Seconds())
	m.flushBytes.WithLabelValues(v.Pool, v.Image).Add(float64(max(0, bytes)))
}

// Collectors returns all metrics.
func (m *Metrics) Collectors() []prometheus.Collector {
	return []prometheus.Collector{collector{m}, m.flushSeconds, m.flushBytes}
}

// collector reads the state of host and volumes at each scrape.
type collector struct{ m *Metrics }

// scrapeTimeout bounds reading the state for one scrape.
const scrapeTimeout = 20 * time.Second

// Describe sends nothing, which makes this an unchecked collector: its metrics depend on the
// volumes.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. It leaves out metrics that cannot be read.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if n, err := c.m.node(ctx); err == nil {
		collectNode(scrape{ch: ch}, n)
	}
	readings, err := c.m.readings(ctx)
	if err != nil {
		return
	}
	for _, r := range readings {
		s := scrape{ch: ch, labels: []string{"pool", "image"}, values: []string{r.Pool, r.Image}}
		s.gauge("volume_cache_bytes", "Size of the volume's cache.", float64(r.CacheBytes))
		if r.Up {
			collectReplica(s, r.Replica)
		}
		s.gauge("volume_connected", "1 if the volume is connected on this host.", exported.Truth(r.Connected))
		if r.Connected {
			collectDevice(s, r.Device)
		}
	}
}

func collectNode(s scrape, n escache.Node) {
	s.gauge("cache_capacity_bytes", "Size of the volume group that holds the caches.", float64(n.CacheCapacityBytes))
	s.gauge("cache_unallocated_bytes", "Free space in the volume group that holds the caches.", float64(n.CacheFreeBytes))
	s.gauge("cache_memory_bytes", "Memory that the caches connected on this host take; it cannot be swapped out.",
		float64(n.CacheMemoryBytes))
	s.gauge("cache_memory_limit_bytes", "Memory that connected caches may take on this host: what they take, and what is free for more.",
		float64(n.CacheMemoryBytes+n.CacheMemoryFreeBytes))
	s.gauge("cache_connected_bytes", "Size of the caches connected on this host together.", float64(n.ConnectedBytes))
	if n.ConnectableBytes != nil {
		s.gauge("cache_connectable_bytes", "Size of the caches that this host has the memory to connect at the same time.",
			float64(*n.ConnectableBytes))
	}
	s.gauge("volumes", "Replicas on this host.", float64(n.Volumes))
	s.gauge("primaries", "Volumes that this host is Primary of.", float64(n.Primaries))
	s.gauge("healthy", "1 if the host reports no problem.", exported.Truth(n.Healthy))
}

func collectReplica(s scrape, st drbd.Status) {
	s.gauge("volume_primary", "1 if this host is the volume's Primary.", exported.Truth(st.Role == drbd.Primary))
	s.gauge("volume_peer_connected", "1 if the peer's replica is connected.", exported.Truth(st.Linked()))
	s.gauge("volume_disk_current", "1 if this host's replica is UpToDate.", exported.Truth(st.Disk == drbd.UpToDate))
	s.gauge("volume_io_suspended",
		"1 while I/O is frozen: the peer is lost, and the arbiter has not allowed going on without it.", exported.Truth(st.Suspended))
	s.gauge("volume_out_of_sync_bytes", "Bytes in which the two replicas differ.", float64(st.OutOfSyncKiB)*1024)
}

func collectDevice(s scrape, dev cache.State) {
	s.gauge("volume_dirty_bytes", "Dirty bytes: in the cache and not yet in Ceph.", float64(dev.Dirty))
	s.gauge("volume_free_bytes", "Bytes that can be written before writes have to wait for Ceph.", float64(dev.Free))
	s.gauge("volume_writeback_bytes", "Bytes that are being written back to Ceph.", float64(dev.WritingBack))
	s.gauge("volume_error", "1 if the cache reports an error and fails all I/O.", exported.Truth(dev.Failed))
	s.counter("volume_read_blocks_total", "Blocks read since the device was assembled.", dev.Counters.Reads)
	s.counter("volume_read_hit_blocks_total", "Blocks read that were cache hits.", dev.Counters.ReadHits)
	s.counter("volume_write_blocks_total", "Blocks written since the device was assembled.", dev.Counters.Writes)
	s.counter("volume_write_hit_blocks_total", "Blocks written that were cache hits.", dev.Counters.WriteHits)
	if dev.Measures != nil {
		collectMeasures(s, *dev.Measures)
	}
}

// scrape sends metrics that all have the same labels.
type scrape struct {
	ch             chan<- prometheus.Metric
	labels, values []string
}

func (s scrape) gauge(name, help string, value float64) {
	s.send(name, help, prometheus.GaugeValue, value)
}

func (s scrape) counter(name, help string, value int64) {
	s.send(name, help, prometheus.CounterValue, float64(value))
}

// histogram sends nothing if h has no ranges: whoever measured is older than the metric.
func (s scrape) histogram(name, help string, h cache.Histogram) {
	if len(h.Counts) != len(h.Bounds)+1 {
		return
	}
	upTo, sum := make(map[float64]uint64, len(h.Bounds)), uint64(0)
	for i, bound := range h.Bounds {
		sum += h.Counts[i]
		upTo[bound] = sum
	}
	s.ch <- prometheus.MustNewConstHistogram(s.desc(name, help), h.Count(), h.Sum, upTo, s.values...)
}

func (s scrape) send(name, help string, kind prometheus.ValueType, value float64) {
	s.ch <- prometheus.MustNewConstMetric(s.desc(name, help), kind, value, s.values...)
}

func (s scrape) desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("escached_"+name, help, s.labels, nil)
}

package engine

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measures are the counters that grow with flushes. What can be read from the kernel is read at each scrape instead.
type measures struct {
	flushSeconds *prometheus.HistogramVec
	flushBytes   *prometheus.CounterVec
}

func newMeasures() *measures {
	m := &measures{
		flushSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "escached_flush_seconds", Help: "How long flush calls took, by whether the cache was clean at the end.",
			Buckets: []float64{0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000},
		}, []string{"clean"}),
		flushBytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "escached_flushed_bytes_total", Help: "What flush calls wrote back; over escached_flush_seconds_sum, the flush rate.",
		}, []string{"pool", "image"}),
	}
	for _, clean := range []string{"true", "false"} {
		m.flushSeconds.WithLabelValues(clean) // there from the start, so that the first one is an increase
	}
	return m
}

func (m *measures) flushed(v volume, took time.Duration, bytes int64, clean bool) {
	label := "false"
	if clean {
		label = "true"
	}
	m.flushSeconds.WithLabelValues(label).Observe(took.Seconds())
	m.flushBytes.WithLabelValues(v.Pool, v.Image).Add(float64(max(0, bytes)))
}

// Collectors are all metrics of the engine: what grows with flushes, and what is read from the kernel at each scrape.
func (e *Engine) Collectors() []prometheus.Collector {
	return []prometheus.Collector{collector{e}, e.metrics.flushSeconds, e.metrics.flushBytes}
}

// collector reads the kernel's numbers at each scrape.
type collector struct{ e *Engine }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("escached_"+name, help, labels, nil)
}

// Describe sends nothing: the collector is unchecked, because what it has depends on the volumes.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	gauge := func(value float64, name, help string, labels ...string) func(...string) {
		return func(values ...string) {
			ch <- prometheus.MustNewConstMetric(desc(name, help, labels...), prometheus.GaugeValue, value, values...)
		}
	}
	if n, err := c.e.Node(ctx); err == nil {
		gauge(float64(n.CacheCapacityBytes), "cache_capacity_bytes", "Size of the caches' volume group.")()
		gauge(float64(n.CacheFreeBytes), "cache_unallocated_bytes", "Room for more caches.")()
		gauge(float64(n.Volumes), "volumes", "Replicas on this host.")()
		gauge(float64(n.Primaries), "primaries", "Volumes this host is Primary of.")()
		gauge(truth(n.Healthy), "healthy", "1 if the host has nothing to complain about.")()
	}
	table, err := c.e.States.Read()
	if err != nil {
		return
	}
	devices, err := c.e.Caches.Devices(ctx, namePrefix)
	if err != nil {
		return
	}
	volume := []string{"pool", "image"}
	for _, v := range c.e.reg.list() {
		g := func(value float64, name, help string) { gauge(value, name, help, volume...)(v.Pool, v.Image) }
		count := func(value int64, name, help string) {
			ch <- prometheus.MustNewConstMetric(desc(name, help, volume...), prometheus.CounterValue, float64(value), v.Pool, v.Image)
		}
		g(float64(v.CacheBytes), "volume_cache_bytes", "Size of the volume's cache.")
		if st, up := table.Devices[v.Minor]; up {
			g(truth(st.Role == "Primary"), "volume_primary", "1 if this host is Primary.")
			g(truth(st.Linked()), "volume_peer_connected", "1 if the peer's replica is connected.")
			g(truth(st.Disk == "UpToDate"), "volume_disk_current", "1 if the local copy is UpToDate.")
			g(truth(st.Suspended), "volume_io_suspended", "1 while I/O is frozen until the arbiter or the peer answers.")
			g(float64(st.OutOfSyncKiB)*1024, "volume_out_of_sync_bytes", "What the two copies differ by.")
		}
		dev, ok := devices[v.name()]
		g(truth(ok), "volume_connected", "1 if the device is here.")
		if ok {
			g(float64(dev.DirtyBytes()), "volume_dirty_bytes", "What Ceph has not yet.")
			g(float64(dev.Free)*4096, "volume_free_bytes", "What can be written before writes wait for Ceph.")
			g(float64(dev.Writeback)*4096, "volume_writeback_bytes", "What is on its way to Ceph.")
			g(truth(dev.Error), "volume_error", "1 if dm-writecache reports an error.")
			count(dev.Reads, "volume_read_blocks_total", "Blocks read since the device was assembled.")
			count(dev.ReadHits, "volume_read_hit_blocks_total", "Of these, found in the cache.")
			count(dev.Writes, "volume_write_blocks_total", "Blocks written since the device was assembled.")
			count(dev.WriteHits, "volume_write_hit_blocks_total", "Of these, found in the cache.")
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

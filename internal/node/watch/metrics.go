package watch

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/exported"
	"github.com/escache/escache-csi/internal/node/health"
)

// metrics are computed from the last poll at each scrape, so a volume that is no longer connected
// leaves none behind.
type metrics struct {
	watch *Watch

	up, connected                             *prometheus.Desc
	dirty, cache, size, synced                *prometheus.Desc
	redundant, frozen, failed, draining, peer *prometheus.Desc
}

// Collector returns the metrics of the volumes that are connected on this node.
func (w *Watch) Collector() prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("escache_node_"+name, help, labels, nil)
	}
	volume := []string{"volume", "pool", "image"}
	return &metrics{
		watch:     w,
		up:        desc("up", "1 while the local escached answers."),
		connected: desc("volumes_connected", "Number of volumes connected on this node."),
		dirty:     desc("volume_dirty_bytes", "Dirty bytes: in the cache and not yet in Ceph.", volume...),
		cache:     desc("volume_cache_bytes", "Size of the volume's cache on each host.", volume...),
		size:      desc("volume_size_bytes", "Size of the volume.", volume...),
		synced:    desc("volume_synced_percent", "Share of the replicas that is equal; below 100 while one is catching up.", volume...),
		redundant: desc("volume_redundant", "1 while every acknowledged write is on two hosts or in Ceph.", volume...),
		frozen:    desc("volume_io_suspended", "1 while reads and writes wait for the arbiter to decide about a lost peer.", volume...),
		failed:    desc("volume_error", "1 while escached reports this error of the volume.", append(volume, "code")...),
		draining:  desc("volume_writethrough", "1 while new writes go through to Ceph at once (drained).", volume...),
		peer:      desc("volume_peer_connected", "1 while the link to the other replica is up.", append(volume, "peer")...),
	}
}

// Describe lists the metrics.
func (m *metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		m.up, m.connected, m.dirty, m.cache, m.size, m.synced, m.redundant, m.frozen, m.failed, m.draining, m.peer,
	} {
		out <- d
	}
}

// Collect computes the metrics.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	m.watch.mu.Lock()
	defer m.watch.mu.Unlock()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(m.up, exported.Truth(m.watch.silentSince.IsZero() && !m.watch.answeredAt.IsZero()))
	gauge(m.connected, float64(len(m.watch.volumes)))
	for ref, v := range m.watch.volumes {
		s := v.status
		labels := []string{ref.Image, ref.Pool, ref.Image}
		if v.name != "" {
			labels[0] = v.name
		}
		if s.DirtyBytes != nil {
			gauge(m.dirty, float64(*s.DirtyBytes), labels...)
		}
		gauge(m.cache, float64(s.CacheBytes), labels...)
		gauge(m.size, float64(s.SizeBytes), labels...)
		gauge(m.synced, s.SyncedPercent, labels...)
		gauge(m.redundant, exported.Truth(health.IsRedundant(s)), labels...)
		gauge(m.frozen, exported.Truth(s.IOSuspended), labels...)
		gauge(m.draining, exported.Truth(s.Mode == escache.ModeWritethrough), labels...)
		if s.Error != nil {
			gauge(m.failed, 1, append(labels, string(s.Error.Code))...)
		}
		for _, p := range s.Peers {
			gauge(m.peer, exported.Truth(p.Linked()), append(labels, p.Name)...)
		}
	}
}

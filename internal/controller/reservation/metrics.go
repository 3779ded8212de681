package reservation

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/internal/exported"
)

// Collector shows what is placed where, as decisions count it: calls in flight included.
type Collector struct{ book *Book }

// NewCollector returns the collector of a book.
func NewCollector(book *Book) *Collector { return &Collector{book: book} }

func description(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("escache_placement_"+name, help, labels, nil)
}

var (
	volumesDesc   = description("group_volumes", "Volumes placed in the group.", "group")
	capacityDesc  = description("group_cache_capacity_bytes", "Size of all members' caches together.", "group")
	allocatedDesc = description("group_cache_allocated_bytes", "Space that replicas take in all members' caches together.", "group")
	largestDesc   = description("group_largest_cache_bytes", "Size of the largest cache that still fits in the group. "+
		"Not of a cordoned group.", "group")
	replicasDesc  = description("node_replicas", "Replicas placed on the node.", "group", "node")
	primariesDesc = description("node_primaries", "Replicas for which placement prefers the node as primary.", "group", "node")
	readyDesc     = description("node_ready", "1 while new replicas can be placed on the node.", "group", "node")
	cordonedDesc  = description("node_cordoned", "1 while the node is cordoned in its group.", "group", "node")
)

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, u := range c.book.Usage() {
		gauge(volumesDesc, float64(u.Volumes), u.Group)
		gauge(capacityDesc, float64(u.CapacityBytes), u.Group)
		gauge(allocatedDesc, float64(u.AllocatedBytes), u.Group)
		if !u.Cordoned {
			gauge(largestDesc, float64(u.LargestBytes), u.Group)
		}
		for _, m := range u.Members {
			gauge(replicasDesc, float64(m.Replicas), u.Group, m.Name)
			gauge(primariesDesc, float64(m.Primaries), u.Group, m.Name)
			gauge(readyDesc, exported.Truth(m.Ready), u.Group, m.Name)
			gauge(cordonedDesc, exported.Truth(m.Cordoned), u.Group, m.Name)
		}
	}
}

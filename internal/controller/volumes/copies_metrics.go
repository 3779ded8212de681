package volumes

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
)

// CopiesCollector exports how many volumes have one current copy, why, and what is at stake.
type CopiesCollector struct {
	records client.Reader
	now     func() time.Time
}

// NewCopiesCollector returns a CopiesCollector. The records are listed each time that it is asked: give it a
// cache.
func NewCopiesCollector(records client.Reader, now func() time.Time) *CopiesCollector {
	return &CopiesCollector{records, now}
}

var (
	countDesc = prometheus.NewDesc("escache_volumes_one_copy",
		"Volumes with one current copy, by why there is no second one.", []string{"reason"}, nil)
	bytesDesc = prometheus.NewDesc("escache_volumes_one_copy_dirty_bytes",
		"Bytes that only one host has and Ceph has not, by why there is no second copy; as last recorded.", []string{"reason"}, nil)
	oldestDesc = prometheus.NewDesc("escache_volumes_one_copy_oldest_seconds",
		"For how long a volume has had one current copy and no complete one in Ceph, the longest of all, by why there is no second copy.",
		[]string{"reason"}, nil)
)

// Describe implements prometheus.Collector.
func (*CopiesCollector) Describe(out chan<- *prometheus.Desc) {
	out <- countDesc
	out <- bytesDesc
	out <- oldestDesc
}

// Collect implements prometheus.Collector.
func (c *CopiesCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	groups, volumes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}
	err := c.records.List(ctx, groups, client.UnsafeDisableDeepCopy)
	if err == nil {
		err = c.records.List(ctx, volumes, client.UnsafeDisableDeepCopy)
	}
	if err != nil {
		out <- prometheus.NewInvalidMetric(countDesc, err)
		return
	}
	byName := map[string]*v1alpha1.NodeGroup{}
	for i := range groups.Items {
		byName[groups.Items[i].Name] = &groups.Items[i]
	}
	type sum struct{ count, bytes, oldest float64 }
	sums := map[string]*sum{}
	for _, reason := range redundancy.Reasons() {
		sums[reason] = &sum{}
	}
	for i := range volumes.Items {
		v := &volumes.Items[i]
		f := redundancy.Of(v, byName[v.Spec.Group], redundancy.Evidence{})
		if f.Whole() {
			continue
		}
		to := sums[f.Reason]
		if to == nil { // of another version of csi-node
			to = sums[v1alpha1.ReasonPeerLost]
		}
		to.count++
		to.bytes += float64(f.ExposedBytes)
		if !f.InCeph && !f.Since.IsZero() {
			to.oldest = max(to.oldest, c.now().Sub(f.Since).Seconds())
		}
	}
	for reason, of := range sums {
		for desc, value := range map[*prometheus.Desc]float64{countDesc: of.count, bytesDesc: of.bytes, oldestDesc: of.oldest} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, reason)
		}
	}
}

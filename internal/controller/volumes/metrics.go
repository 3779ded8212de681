package volumes

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Collector exports what the records say of volumes and what nobody else can know.
type Collector struct{ records client.Reader }

// NewCollector returns a Collector. The records are listed each time that it is asked: give it a
// cache.
func NewCollector(records client.Reader) *Collector { return &Collector{records: records} }

var behindDesc = prometheus.NewDesc("escache_volume_record_behind_disks",
	"1 while the volume's record is older than what a host has on its disks.", []string{"volume"}, nil)

// Describe implements prometheus.Collector.
func (*Collector) Describe(out chan<- *prometheus.Desc) { out <- behindDesc }

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var all v1alpha1.CacheVolumeList
	if err := c.records.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		out <- prometheus.NewInvalidMetric(behindDesc, err)
		return
	}
	for i := range all.Items {
		v := &all.Items[i]
		if meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
			out <- prometheus.MustNewConstMetric(behindDesc, prometheus.GaugeValue, 1, v.Name)
		}
	}
}

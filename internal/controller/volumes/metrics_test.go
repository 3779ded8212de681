package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// away is an API server that does not answer.
type away struct{ client.Reader }

func (away) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("the API server is away")
}

func TestVolumesWhoseRecordIsBehindTheDisksAreExported(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	objects := fake.NewClientBuilder().WithScheme(scheme)
	for name, status := range map[string]metav1.ConditionStatus{"behind": metav1.ConditionTrue, "mended": metav1.ConditionFalse, "new": ""} {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if status != "" {
			meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionRecordBehindDisks, Status: status, Reason: "Test"})
		}
		objects.WithObjects(v)
	}
	got, err := gather(t, objects.Build())
	if err != nil || !slices.Equal(got, []string{"escache_volume_record_behind_disks volume=behind 1"}) {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := gather(t, away{}); err == nil {
		t.Errorf("records that cannot be read look like records that are right: %q", got)
	}
}

// gather returns what is exported, a line for each series.
func gather(t *testing.T, records client.Reader) (lines []string, err error) {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(records))
	families, err := registry.Gather()
	for _, f := range families {
		for _, m := range f.GetMetric() {
			line := f.GetName()
			for _, l := range m.GetLabel() {
				line += " " + l.GetName() + "=" + l.GetValue()
			}
			lines = append(lines, fmt.Sprintf("%s %v", line, m.GetGauge().GetValue()))
		}
	}
	return lines, err
}

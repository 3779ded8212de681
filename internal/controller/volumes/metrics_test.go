package volumes

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
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
	const want = `
# HELP escache_volume_record_behind_disks 1 while the volume's record is older than what a host has on its disks.
# TYPE escache_volume_record_behind_disks gauge
escache_volume_record_behind_disks{volume="behind"} 1
`
	if err := testutil.CollectAndCompare(NewCollector(objects.Build()), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(NewCollector(away{}))
	if _, err := registry.Gather(); err == nil {
		t.Error("records that cannot be read must not look like records that are right")
	}
}

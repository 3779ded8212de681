package adoption

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// withdrawals are the volumes whose adoption was withdrawn.
type withdrawals []string

func (*withdrawals) Adopt(context.Context, volumes.Adoption) (*v1alpha1.CacheVolume, error) {
	return nil, volumes.ErrUnavailable
}

func (w *withdrawals) Withdraw(_ context.Context, volume, _ string) error {
	*w = append(*w, volume)
	return nil
}

// TestAnAdoptionWhoseRequestIsGoneIsTakenBack: kubectl escache says that deleting the CacheAdoption
// withdraws it.
func TestAnAdoptionWhoseRequestIsGoneIsTakenBack(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	record := func(request string, phase v1alpha1.VolumePhase) client.Object {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "adopted-" + request}}
		v.Spec.Adoption = &v1alpha1.Adoption{Request: request}
		v.Status.Phase = phase
		return v
	}
	pending := &v1alpha1.CacheAdoption{ObjectMeta: metav1.ObjectMeta{Name: "adopt-1", UID: types.UID("pending")}}
	own := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}} // is being created
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pending, own, record("pending", ""), record("gone", ""),
		record("done", v1alpha1.VolumeReady)).Build()
	var made withdrawals
	r := New(Config{
		Client: api, Live: api, Volumes: &made, Events: events.NewFakeRecorder(9), Log: slog.New(slog.DiscardHandler),
		Again: time.Second, Longest: time.Minute,
	})
	if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "adopt-2"}}); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(made, withdrawals{"adopted-gone"}) {
		t.Errorf("taken back: %q", made)
	}
}

package leadership_test

import (
	"context"
	"errors"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/internal/controller/leadership"
)

func TestWhoLeads(t *testing.T) {
	now := time.Now()
	lease := func(holder string, age time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"}, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, RenewTime: new(metav1.NewMicroTime(now.Add(-age))), LeaseDurationSeconds: new(int32(10)),
		}}
	}
	for name, c := range map[string]struct {
		lease *coordinationv1.Lease
		want  string
	}{
		"nobody ever led": {nil, ""}, "one leads": {lease("a", 9*time.Second), "a"}, "it stopped": {lease("a", 11*time.Second), ""},
		"it gave it back": {lease("", time.Second), ""}, "not taken yet": {&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lease"}}, ""},
	} {
		api := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
		if c.lease != nil {
			api = api.WithObjects(c.lease)
		}
		got, err := leadership.Holder(t.Context(), api.Build(), client.ObjectKey{Namespace: "ns", Name: "lease"}, now)
		if got != c.want || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	broken := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("no answer")
		},
	}).Build()
	if _, err := leadership.Holder(t.Context(), broken, client.ObjectKey{Namespace: "ns", Name: "lease"}, now); err == nil {
		t.Error("nobody leads, if the API server does not answer")
	}
}

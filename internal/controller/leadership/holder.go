package leadership

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Holder returns the identity of the replica that leads by the Lease of that name; "" if none does.
// It is for people: clocks may differ.
func Holder(ctx context.Context, api client.Reader, lease client.ObjectKey, now time.Time) (string, error) {
	l := &coordinationv1.Lease{}
	if err := api.Get(ctx, lease, l); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	if l.Spec.HolderIdentity == nil || l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil ||
		now.Sub(l.Spec.RenewTime.Time) > time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second {
		return "", nil
	}
	return *l.Spec.HolderIdentity, nil
}

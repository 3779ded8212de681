// Package finalizers removes Kubernetes objects that only finalizers keep.
package finalizers

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Remove removes the finalizers of an object that is marked as deleted, and so the object itself. An
// object that is gone is success.
func Remove(ctx context.Context, c client.Writer, o client.Object) error {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"finalizers":null}}`, o.GetUID())
	return client.IgnoreNotFound(c.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)))
}

package volumes

import (
	"context"
	"fmt"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// DrainsOf returns the claims of the CacheFlushes that drain a node and are for an attached volume. Written
// with its attachment, they have it write through from the beginning. A CacheFlush that is deleted
// meanwhile ends them as it ends others: package cacheflush looks for what is on record. One that has failed drains
// nothing.
func (s *Steps) DrainsOf(ctx context.Context, v *v1alpha1.CacheVolume) ([]v1alpha1.WriteThroughClaim, error) {
	all := &v1alpha1.CacheFlushList{}
	if err := s.Cached.List(ctx, all); err != nil {
		return nil, fmt.Errorf("look for drains of volume %s: %w", v.Name, err)
	}
	var claims []v1alpha1.WriteThroughClaim
	for i := range all.Items {
		f := &all.Items[i]
		if f.Spec.Node == "" || f.Spec.Mode != v1alpha1.FlushModeDrain || !f.Spec.SelectsOnNode(v) || !f.DeletionTimestamp.IsZero() ||
			f.Status.Phase == v1alpha1.FlushFailed {
			continue
		}
		claims = append(claims, v1alpha1.WriteThroughClaim{Owner: v1alpha1.FlushOwner(f.Name), Epoch: v.Status.Epoch, Since: s.now()})
	}
	return claims, nil
}

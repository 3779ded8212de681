package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// CloneSource is the index of volumes by the volume that they are clones of.
const CloneSource = "spec.fromVolume"

// CloneSourceOf returns the key of that index.
func CloneSourceOf(o client.Object) []string {
	if v, ok := o.(*v1alpha1.CacheVolume); ok && v.Spec.FromVolume != "" {
		return []string{v.Spec.FromVolume}
	}
	return nil
}

// WithoutClones refuses a volume that is being cloned: its image may have the clone's temporary
// snapshot. Clones that are made need nothing of it.
func (s *Steps) WithoutClones(ctx context.Context, volume string) error {
	all := &v1alpha1.CacheVolumeList{}
	if err := s.Cached.List(ctx, all, client.MatchingFields{CloneSource: volume}); err != nil {
		return fmt.Errorf("look for clones of volume %s: %w", volume, err)
	}
	var names []string
	for i := range all.Items {
		if !all.Items[i].Status.BeingMade() {
			continue
		}
		// The cache may not know yet that a clone is made, or gone.
		switch v, err := s.Volume(ctx, all.Items[i].Name); {
		case err == nil && v.Status.BeingMade():
			names = append(names, v.Name)
		case err != nil && !errors.Is(err, ErrNotFound):
			return err
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("volume %s is being cloned into %s: wait until that has ended, or delete their claims: %w",
		volume, strings.Join(names, ", "), ErrRefused)
}

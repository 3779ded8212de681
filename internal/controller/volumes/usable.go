package volumes

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Usable refuses a volume that is not made yet, or about to go.
func Usable(v *v1alpha1.CacheVolume) error {
	switch {
	case v.Status.Phase == v1alpha1.VolumeReleasing:
		return fmt.Errorf("volume %s is being released, and its image is given up: %w", v.Name, ErrRefused)
	case v.Spec.Release:
		return fmt.Errorf("volume %s is being released; to keep it: kubectl escache release --cancel --volume %s: %w",
			v.Name, v.Name, ErrRefused)
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return InConflict(v)
	case v.Status.Phase != v1alpha1.VolumeReady:
		return fmt.Errorf("volume %s is not created yet: %w", v.Name, ErrRefused)
	case v.Status.Move != nil:
		return Moving(v)
	}
	return nil
}

// Cloneable refuses a volume that no clone can be made of.
func Cloneable(v *v1alpha1.CacheVolume) error {
	if !v.DeletionTimestamp.IsZero() {
		return fmt.Errorf("volume %s is being deleted: %w", v.Name, ErrRefused)
	}
	return Usable(v)
}

// Moving refuses a volume while it goes to another group. That takes seconds, and the call is repeated.
func Moving(v *v1alpha1.CacheVolume) error {
	return fmt.Errorf("volume %s is moving to group %s: %w", v.Name, v.Status.Move.Group, ErrBusy)
}

// InConflict says what keeps a volume whose record was re-created from being used.
func InConflict(v *v1alpha1.CacheVolume) error {
	why := ""
	if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCopyProven); c != nil {
		why = ": " + c.Message
	}
	return fmt.Errorf("volume %s is stopped, because nothing proves which copy of its data is current%s; "+
		"kubectl escache adopt --all says what helps: %w", v.Name, why, ErrRefused)
}

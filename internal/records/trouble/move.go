package trouble

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// MovingTo is the group that a volume is to go to; "" if it stays.
func MovingTo(v *v1alpha1.CacheVolume) string {
	switch {
	case v.Status.Move != nil:
		return v.Status.Move.Group
	case v.Spec.MoveTo != nil:
		return v.Spec.MoveTo.Group
	default:
		return ""
	}
}

// Move says how far the move of a volume is; "" if it stays.
func Move(v *v1alpha1.CacheVolume) string {
	to := MovingTo(v)
	if to == "" {
		return ""
	}
	why := "csi-controller has not begun"
	if c := MovingCondition(v); c != nil {
		why = cmp.Or(c.Message, c.Reason)
	}
	if v.Status.Move != nil {
		return fmt.Sprintf("it goes to group %s, since %s: %s", to, v.Status.Move.Since.Format(time.DateTime), why)
	}
	return fmt.Sprintf("it is to go to group %s: %s", to, why)
}

// MovingCondition returns the condition Moving of a volume, nil if it has none.
func MovingCondition(v *v1alpha1.CacheVolume) *metav1.Condition {
	return meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionMoving)
}

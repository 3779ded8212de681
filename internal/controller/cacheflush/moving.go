package cacheflush

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
)

// takesUpMoves says on record that the second copies are moved, if that is asked for. Package repair does it.
func (r *Reconciler) takesUpMoves(f *v1alpha1.CacheFlush) {
	if !f.Spec.MoveSecondCopies || finished(f) {
		return
	}
	meta.SetStatusCondition(&f.Status.Conditions, metav1.Condition{
		Type: v1alpha1.FlushConditionMoves, Status: metav1.ConditionTrue, Reason: "TakenUp", ObservedGeneration: f.Generation,
		Message:            "volumes with their second copy on node " + f.Spec.Node + " get another one if a host of the group can take it",
		LastTransitionTime: metav1.NewTime(r.Now()),
	})
}

// moving adds to a drained volume how far the move of its second copy is, if that is asked for. It is pure.
func moving(spec v1alpha1.CacheFlushSpec, v *v1alpha1.CacheVolume, now v1alpha1.FlushedVolume) v1alpha1.FlushedVolume {
	filled := spec.MoveSecondCopies && v.Status.AttachedNode != spec.Node && !v.Spec.HasReplica(spec.Node) && redundancy.Lost(v) != ""
	if now.Phase != v1alpha1.FlushDrained || now.Message != "" || !filled && !spec.Moves(v) {
		return now
	}
	c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
	switch {
	case c != nil && c.Reason == v1alpha1.ReasonNoOtherHost:
		now.Message = "stays writing through: " + c.Message
	case c != nil && c.Status == metav1.ConditionTrue:
		now.Message = "its second copy is being moved: " + c.Message
	default:
		now.Message = "its second copy is to be moved to another host"
	}
	return now
}

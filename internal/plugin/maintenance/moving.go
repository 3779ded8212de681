package maintenance

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// moves returns the volumes whose second copy an evacuation moves and has not moved yet, and those for whose copy
// there is no other host.
func moves(volumes []v1alpha1.CacheVolume, drain *v1alpha1.CacheFlush) (moving, stuck []*v1alpha1.CacheVolume) {
	for i := range volumes {
		v := &volumes[i]
		elsewhere := v.Status.AttachedNode != "" && v.Status.AttachedNode != drain.Spec.Node && !v.Status.FlushAttached()
		claimed := slices.Contains(authority.Claims(v), v1alpha1.FlushOwner(drain.Name))
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
		switch here := drain.Spec.Moves(v); {
		case !drain.Spec.MoveSecondCopies || !elsewhere || !here && !claimed:
		case here && c != nil && c.Reason == v1alpha1.ReasonNoOtherHost:
			stuck = append(stuck, v)
		default:
			moving = append(moving, v)
		}
	}
	return moving, stuck
}

// moved says how far the moves of second copies off a node are.
func moved(node string, moving, stuck []*v1alpha1.CacheVolume) string {
	var says strings.Builder
	if len(moving) > 0 {
		fmt.Fprintf(&says, "second copies on node %s: %d are being moved, such as that of %s", node, len(moving), moving[0].Name)
		c := meta.FindStatusCondition(moving[0].Status.Conditions, v1alpha1.ConditionRepairing)
		if c != nil && c.Status == metav1.ConditionTrue {
			fmt.Fprintf(&says, " (%s)", c.Reason)
		}
		says.WriteString("\n")
	}
	for _, v := range stuck {
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
		fmt.Fprintf(&says, "volume %s stays writing through: %s\n", v.Name, c.Message)
	}
	return says.String()
}

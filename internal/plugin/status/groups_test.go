package status

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/state"
)

func TestStatusTellsWhatKeepsADeletedGroupAndWhichHostsOutsideItHaveReplicas(t *testing.T) {
	s := &state.State{Groups: []v1alpha1.NodeGroup{{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}}}}
	s.Groups[0].Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.GroupDeletionBlocked, Reason: v1alpha1.ReasonVolumesLeft, Status: metav1.ConditionTrue, Message: "kept for pvc-1"},
		{Type: v1alpha1.GroupFormerMembers, Reason: v1alpha1.ReasonReplicasOutside, Status: metav1.ConditionTrue, Message: "node n4 has replicas of pvc-2"},
		{Type: v1alpha1.GroupReady, Status: metav1.ConditionTrue, Message: "ready"},
	}
	out := shown(t, s, options{})
	for _, part := range []string{"group rack1: kept for pvc-1", "group rack1: node n4 has replicas of pvc-2", "docs/hosts"} {
		if !strings.Contains(out, part) {
			t.Errorf("it does not say %q:\n%s", part, out)
		}
	}
	if strings.Contains(out, "group rack1: ready") {
		t.Errorf("what is right is shown as wrong:\n%s", out)
	}
}

package plugin

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
)

func TestStatusTellsWhatKeepsADeletedGroupAndWhichHostsOutsideItHaveReplicas(t *testing.T) {
	s := &state.State{Groups: []v1alpha1.NodeGroup{{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}}}}
	s.Groups[0].Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.GroupDeletionBlocked, Reason: v1alpha1.ReasonVolumesLeft, Status: metav1.ConditionTrue, Message: "kept for pvc-1"},
		{Type: v1alpha1.GroupFormerMembers, Reason: v1alpha1.ReasonReplicasOutside, Status: metav1.ConditionTrue, Message: "node n4 has replicas of pvc-2"},
		{Type: v1alpha1.GroupReady, Status: metav1.ConditionTrue, Message: "ready"},
	}
	out := shown(t, s, statusFlags{})
	for _, part := range []string{"group rack1: kept for pvc-1", "group rack1: node n4 has replicas of pvc-2", "docs/hosts"} {
		if !strings.Contains(out, part) {
			t.Errorf("it does not say %q:\n%s", part, out)
		}
	}
	if strings.Contains(out, "group rack1: ready") {
		t.Errorf("what is right is shown as wrong:\n%s", out)
	}
}

func TestExplainSaysWhatFollowsForAReplicaOutsideTheGroup(t *testing.T) {
	group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "rack1", Replicas: []string{"n1", "n4"}}}
	v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Authority: v1alpha1.AuthorityCache}
	var out bytes.Buffer
	c := plugintest.Console(&out, plugintest.AtNoon)
	printCopies(c, v, group)
	if !strings.Contains(out.String(), "node n4 is not in group rack1 any more, and has a replica (second copy there): restart its pod") {
		t.Errorf("explain says\n%s", out.String())
	}
	out.Reset()
	v.Spec.Replicas = []string{"n1", "n2"}
	printCopies(c, v, group)
	if strings.Contains(out.String(), "any more") {
		t.Errorf("both are in the group, and explain says\n%s", out.String())
	}
}

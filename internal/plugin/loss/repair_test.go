package loss

import (
	"bytes"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// alone is a volume on n1 whose copy on n2 is lost for a reason.
func alone(name, reason string) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}}}
	v.Status = v1alpha1.CacheVolumeStatus{
		AttachedNode: "n1", Epoch: 3, Authority: v1alpha1.AuthorityCache, Outdated: []string{"n2"}, DirtyBytes: 4096,
		Conditions: []metav1.Condition{{Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: reason, Message: "because"}},
	}
	return v
}

// writesThrough is a volume on n1 whose copy on n2 is not current. All is in Ceph, so csi-node calls it redundant.
func writesThrough(name string) *v1alpha1.CacheVolume {
	v := alone(name, "")
	v.Status.Authority, v.Status.DirtyBytes = v1alpha1.AuthorityCeph, 0
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: v1alpha1.FlushOwner("evacuate-n2"), Epoch: 3}}
	v.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTwoCopies},
		{Type: v1alpha1.ConditionSynced, Status: metav1.ConditionTrue, Reason: "InSync"},
	}
	return v
}

func TestRepairAsksForWhatHasOneCopy(t *testing.T) {
	whole := alone("whole", "")
	whole.Status.Outdated = nil
	detached := alone("detached", v1alpha1.ReasonHostSilent)
	detached.Status.AttachedNode = ""
	lost := alone("lost", v1alpha1.ReasonHostSilent)
	lost.Spec.Group, lost.Spec.Replicas = "h", []string{"n7", "n8"}
	lost.Status.AttachedNode, lost.Status.Outdated = "", []string{"n7", "n8"}
	filled := writesThrough("filled")
	filled.Status.Conditions[1].Status, filled.Status.Conditions[1].Reason = metav1.ConditionFalse, "Resyncing"
	// The new copy's host is gone too.
	again := writesThrough("again")
	again.Spec.Replicas, again.Status.Outdated = []string{"n1", "n3"}, []string{"n3"}
	again.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: 3, Lost: "n2", Substitute: "n3"}
	dirty := alone("dirty", v1alpha1.ReasonPeerLost)
	dirty.Spec.Replicas, dirty.Status.Outdated, dirty.Status.Repair = again.Spec.Replicas, again.Status.Outdated, again.Status.Repair
	copied := alone("copied", v1alpha1.ReasonPeerOutdated)
	copied.Spec.Replicas, copied.Status.Outdated, copied.Status.Repair = again.Spec.Replicas, again.Status.Outdated, again.Status.Repair
	for _, tc := range []struct {
		name   string
		chosen selection
		dryRun bool
		asked  []string
		says   string
	}{
		{"one", selection{volume: "silent"}, false, []string{"silent"}, "silent: because; another host of group g gets the copy of n2"},
		{"one, only shown", selection{volume: "silent"}, true, nil, "dry run: nothing was changed"},
		{"a host", selection{host: "n2"}, false, []string{"silent", "empty", "detached", "drained"}, "empty: because; a new copy is created on n2"},
		{"a group", selection{group: "g"}, false, []string{"silent", "empty", "detached", "drained", "again", "dirty"}, "4Ki are on one host only"},
		{"one with two copies", selection{volume: "whole"}, false, nil, "nothing to repair"},
		{"one that catches up", selection{volume: "behind"}, false, nil, "nothing to repair"},
		{"one that writes through", selection{volume: "drained"}, false, []string{"drained"},
			"drained: the copy on n2 is not current; another host of group g, or n2, gets the copy, if n2 does not answer, has lost it, " +
				"or is not linked; it writes through to Ceph already; Ceph has everything"},
		{"one that writes through, and catches up", selection{volume: "filled"}, false, nil, "nothing to repair"},
		{"one whose new copy is lost", selection{volume: "again"}, false, []string{"again"}, "again: a new copy is being made on n3; another host"},
		{"one whose new copy is lost, and dirty", selection{volume: "dirty"}, false, []string{"dirty"}, "dirty: a new copy is being made on n3; another"},
		{"one whose new copy is filled", selection{volume: "copied"}, false, nil, "nothing to repair"},
		{"one that is detached", selection{volume: "detached"}, false, []string{"detached"},
			"detached: because; no pod has it: a host with a current copy writes it back; 4Ki are on one host only"},
		{"one that is detached, and lost", selection{volume: "lost"}, false, nil, "nothing to repair"},
		{"none", selection{volume: "nobody"}, false, nil, ""},
		{"another host", selection{host: "n9"}, false, nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			group := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
			api := plugintest.Cluster(t, group, alone("silent", v1alpha1.ReasonHostSilent), alone("empty", v1alpha1.ReasonHostReinstalled),
				alone("behind", v1alpha1.ReasonPeerOutdated), whole.DeepCopy(), detached.DeepCopy(), lost.DeepCopy(),
				writesThrough("drained"), filled.DeepCopy(), again.DeepCopy(), dirty.DeepCopy(), copied.DeepCopy())
			var out bytes.Buffer
			c := plugintest.Console(&out, plugintest.AtNoon)
			err := runRepair(t.Context(), c, api, tc.chosen, tc.dryRun)
			if (err == nil) != (tc.says != "") || !strings.Contains(out.String(), tc.says) {
				t.Errorf("%v: %s", err, out.String())
			}
			all := &v1alpha1.CacheVolumeList{}
			if err := api.List(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			for _, v := range all.Items {
				wanted := strings.Contains(" "+strings.Join(tc.asked, " ")+" ", " "+v.Name+" ")
				if _, asked := v.Annotations[v1alpha1.AnnotationRepair]; asked != wanted {
					t.Errorf("%s: asked %v", v.Name, asked)
				}
			}
		})
	}
}

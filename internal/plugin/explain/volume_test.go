package explain

import (
	"bytes"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

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

func TestExplainShowsWhyPodsWait(t *testing.T) {
	c, out := plugintest.Output()
	api := plugintest.Cluster(t, plugintest.Pod("p", false),
		plugintest.Event("p", "FailedMount", plugintest.Refused, plugintest.Noon.Add(-time.Minute)))
	v, err := claims.ReadVolume(t.Context(), api, "pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	printVolume(t.Context(), c, api, v)
	_, after, _ := strings.Cut(out.String(), "Events:")
	events, next, _ := strings.Cut(after, "Next step:")
	if !strings.Contains(events, "FailedMount: "+plugintest.Refused) {
		t.Errorf("events: %s", events)
	}
	if strings.HasPrefix(next, " nothing") || !strings.Contains(next, "pod user/p waits for it") {
		t.Errorf("next step:%s", next)
	}
	if !strings.Contains(out.String(), "pvc-1, of claim user/static (on record: user/shared), created") {
		t.Errorf("claims: %s", out.String())
	}
}

package maintenance

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

func TestCordonNamesAGroupOrAHost(t *testing.T) {
	for _, tc := range []struct {
		name, arg string
		on        bool
		group     bool     // is cordoned then
		nodes     []string // are cordoned then
		says      string
		exit      int
	}{
		{"a group", "g", true, true, []string{"n1"}, "group g is cordoned: no new volumes are placed there, and what is there works on", 0},
		{"a group, in full", "group/g", true, true, []string{"n1"}, "group g is cordoned", 0},
		{"a group, as status -o name has it", "nodegroup.escache.io/g", true, true, []string{"n1"}, "group g is cordoned", 0},
		{"a host", "n2", true, false, []string{"n1", "n2"}, "node n2 is cordoned: no new replicas are placed there, and what is there works on", 0},
		{"a host, in full", "host/n2", true, false, []string{"n1", "n2"}, "node n2 is cordoned", 0},
		{"a host again", "n1", true, false, []string{"n1"}, "node n1 is cordoned", 0},
		{"nothing", "zz", true, false, []string{"n1"}, "there is no NodeGroup zz, and node zz is in no NodeGroup; kubectl escache status lists them", failure.Failed},
		{"no group", "group/n1", true, false, []string{"n1"}, "there is no NodeGroup n1; kubectl escache status lists them", failure.Failed},
		{"no host", "host/g", true, false, []string{"n1"}, "node g is in no NodeGroup; kubectl escache status lists them", failure.Failed},
		{"both", "both", true, false, []string{"n1"}, "both is a NodeGroup, and a node of NodeGroup other: say group/both or host/both", failure.Usage},
		{"both, in full", "host/both", true, false, []string{"n1"}, "node both is cordoned", 0},
		{"another kind", "volume/x", true, false, []string{"n1"}, "volume/x is neither group/NAME nor host/NAME", failure.Usage},
		{"a host, no more", "n1", false, false, nil, "node n1 takes new replicas", 0},
		{"nothing, no more", "zz", false, false, []string{"n1"}, "there is no NodeGroup zz", failure.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := plugintest.Group("g", "n1", "n2", "n3")
			g.Spec.CordonedNodes = []string{"n1"}
			api := plugintest.Cluster(t, g, plugintest.Group("both", "b1", "b2", "b3"), plugintest.Group("other", "both", "o2", "o3"))
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			var err error
			if tc.on {
				err = runCordon(t.Context(), c, api, tc.arg)
			} else {
				err = runUncordon(t.Context(), c, api, tc.arg, time.Second)
			}
			if text := out.String() + plugintest.ErrorText(err); failure.ExitCode(err) != tc.exit || !strings.Contains(text, tc.says) {
				t.Errorf("exit %d: %s", failure.ExitCode(err), text)
			}
			plugintest.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(g), g))
			if g.Spec.Cordoned != tc.group || !slices.Equal(g.Spec.CordonedNodes, tc.nodes) {
				t.Errorf("the group is %+v", g.Spec)
			}
		})
	}
}

func TestUncordonAGroup(t *testing.T) {
	g := plugintest.Group("g")
	g.Spec.Cordoned, g.Spec.CordonedNodes = true, []string{"n1"}
	api := plugintest.Cluster(t, g, drained("evacuate-n1"))
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	plugintest.Must(t, runUncordon(t.Context(), c, api, "g", time.Second))
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(g), g))
	if g.Spec.Cordoned || !slices.Equal(g.Spec.CordonedNodes, []string{"n1"}) {
		t.Errorf("the group is %+v", g.Spec)
	}
	for _, part := range []string{"group g takes new volumes", "host n1 stays cordoned: kubectl escache uncordon n1"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("it does not say %q:\n%s", part, out.String())
		}
	}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "evacuate-n1"}, &v1alpha1.CacheFlush{}))
}

// A host that was evacuated and then replaced is in no group. Its evacuation has to end all the same, and
// the chart does not take it off the list of cordoned nodes.
func TestUncordonEndsTheEvacuationOfAHostThatHasLeftItsGroup(t *testing.T) {
	for name, tc := range map[string]struct {
		cordoned []string
		more     []client.Object
	}{
		"evacuated and cordoned": {[]string{"n1", "n9"}, []client.Object{drained("evacuate-n9")}},
		"evacuated":              {[]string{"n1"}, []client.Object{drained("evacuate-n9")}},
		"cordoned":               {[]string{"n1", "n9"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := plugintest.Group("g")
			g.Spec.CordonedNodes = tc.cordoned
			api := plugintest.Cluster(t, append(tc.more, g)...)
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			plugintest.Must(t, runUncordon(t.Context(), c, api, "n9", time.Second))
			if !strings.Contains(out.String(), "node n9 is in no NodeGroup: its evacuation has ended\n") {
				t.Errorf("it says\n%s", out.String())
			}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "evacuate-n9"}, &v1alpha1.CacheFlush{}); err == nil {
				t.Error("the evacuation goes on")
			}
			plugintest.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(g), g))
			if !slices.Equal(g.Spec.CordonedNodes, []string{"n1"}) {
				t.Errorf("cordoned: %q", g.Spec.CordonedNodes)
			}
		})
	}
}

// Of several groups that name a node, the oldest has it.
func TestCordonOfAHostThatTwoGroupsName(t *testing.T) {
	young, old := plugintest.Group("a"), plugintest.Group("z")
	young.CreationTimestamp, old.CreationTimestamp = metav1.NewTime(plugintest.Noon), metav1.NewTime(plugintest.Noon.Add(-time.Hour))
	api := plugintest.Cluster(t, young, old)
	c := plugintest.Console(&bytes.Buffer{}, time.Now)
	plugintest.Must(t, runCordon(t.Context(), c, api, "n1"))
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(old), old))
	if !slices.Equal(old.Spec.CordonedNodes, []string{"n1"}) {
		t.Errorf("the oldest group is %+v", old.Spec)
	}
}

// What is cordoned in a chart's values is cordoned again at the next upgrade.
func TestUncordonTellsOfHelm(t *testing.T) {
	g := plugintest.Group("g")
	g.Spec.Cordoned = true
	g.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"}
	g.Annotations = map[string]string{"meta.helm.sh/release-name": "escache", "meta.helm.sh/release-namespace": "escache-system"}
	api := plugintest.Cluster(t, g)
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	plugintest.Must(t, runUncordon(t.Context(), c, api, "g", time.Second))
	if !strings.Contains(out.String(), "Helm release escache in namespace escache-system") || !strings.Contains(out.String(), "cordoned: true") {
		t.Errorf("it says\n%s", out.String())
	}
}

package maintenance

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// answering is group g, whose hosts n1, n2 and n3 answer, with n3 cordoned.
func answering() *v1alpha1.NodeGroup {
	g := plugintest.Group("g")
	g.Spec.CordonedNodes = []string{"n3"}
	for _, node := range g.Spec.Nodes {
		g.Status.Members = append(g.Status.Members, v1alpha1.NodeGroupMember{
			Name: node, Ready: node != "n3", LastSeen: &metav1.Time{Time: plugintest.Noon.Add(-5 * time.Second)},
		})
	}
	return g
}

// joined are the objects of a Node n4 on which the driver runs.
func joined() []client.Object {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	drivers := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n4"}}
	drivers.Spec.Drivers = []storagev1.CSINodeDriver{{
		Name: v1alpha1.DriverName, NodeID: "n4", Allocatable: &storagev1.VolumeNodeResources{Count: new(int32(64))},
	}}
	return []client.Object{node, drivers}
}

// on is a volume with its copies on n1 and n3.
func on(name, attached string) *v1alpha1.CacheVolume {
	v := second(name, v1alpha1.AuthorityCache)
	v.Spec.Replicas, v.Status.AttachedNode = []string{"n1", "n3"}, attached
	return v
}

func byHelm(g *v1alpha1.NodeGroup) *v1alpha1.NodeGroup {
	g.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"}
	g.Annotations = map[string]string{"meta.helm.sh/release-name": "escache", "meta.helm.sh/release-namespace": "escache-system"}
	return g
}

func TestReplaceHost(t *testing.T) {
	was, is := []string{"n1", "n2", "n3"}, []string{"n1", "n2", "n4"}
	for _, tc := range []struct {
		name  string
		group *v1alpha1.NodeGroup
		asks  replacing
		more  []client.Object
		nodes []string // of the group then
		exit  int
		says  []string
		never []string
	}{
		{"only look", answering(), replacing{}, []client.Object{on("second", "n1"), on("also", "n1")}, was, 0, []string{
			"Host n3 of group g makes way for n4: its nodes [n1, n2, n3] become [n1, n2, n4].\n", "n3 answers, and has a copy of 2 volumes of the group",
			"second copy there: also, second\n    -> restart its pod", "What to do, in this order:\n", "Nothing speaks against it.", "1. kubectl escache evacuate n3 --wait\n", "kubectl drain n3 ",
			"kubectl escache replace-host n3 n4 --apply", "kubectl escache uncordon n3",
		}, []string{"Helm release"}},
		{"only look, with Helm", byHelm(answering()), replacing{}, nil, was, 0, []string{
			"n3 answers, and has no copy of a volume of the group", "Helm release escache in namespace escache-system",
			"nodeGroups:\n", "- name: g\n", "nodes: [n1, n2, n4] # was [n1, n2, n3]\n",
		}, []string{"--apply"}},
		{"only look, and it is not possible", answering(), replacing{}, []client.Object{on("busy", "n3")}, was, failure.Failed, []string{
			"What speaks against it, and what to do:\n  volume busy: attached there, and not drained\n    -> kubectl escache evacuate n3 --wait",
			"host n3 cannot be replaced yet", "What to do, in this order:\n",
		}, []string{"Nothing speaks against it"}},
		{"do it", answering(), replacing{apply: true}, []client.Object{on("second", "n1")}, is, 0, []string{
			"NodeGroup g has the nodes [n1, n2, n4] now.\n", "What is left to do:\n", "Restart the pods of volumes that have a copy on n3",
		}, []string{"replace-host n3 n4 --apply", "kubectl escache evacuate", "uncordon"}},
		{"do it, evacuated", answering(), replacing{apply: true}, []client.Object{drained("evacuate-n3")}, is, 0, []string{
			"1. kubectl escache status -o wide, until n4 is Ready and no attached or dirty volume has a copy on n3", "2. kubectl escache uncordon n3, which ends its evacuation",
		}, []string{"Restart the pods"}},
		{"do it, with Helm", byHelm(answering()), replacing{apply: true}, nil, was, failure.Failed, []string{
			"nodes: [n1, n2, n4] # was [n1, n2, n3]", "nothing was changed: NodeGroup g is managed by Helm release escache in namespace escache-system",
			"puts n3 back", "Change it there, as said above",
		}, []string{"has the nodes"}},
		{"do it, and it is not possible", answering(), replacing{apply: true}, []client.Object{on("busy", "n3")}, was, failure.Failed, []string{
			"volume busy: attached there, and not drained", "host n3 cannot be replaced yet: 1 thing speaks against it; nothing was changed",
		}, []string{"has the nodes", "in this order"}},
		{"try it", answering(), replacing{dryRun: true}, nil, was, 0, []string{"dry run: the API server takes the change, and nothing was changed\n"}, []string{"has the nodes"}},
		{"try it, with Helm", byHelm(answering()), replacing{dryRun: true}, nil, was, 0, []string{"dry run: the API server takes the change"}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api := plugintest.Cluster(t, slices.Concat([]client.Object{tc.group}, joined(), tc.more)...)
			var out bytes.Buffer
			c := plugintest.Console(&out, plugintest.AtNoon)
			tc.asks.from, tc.asks.to = "n3", "n4"
			err := runReplace(t.Context(), c, api, tc.asks)
			text := out.String() + plugintest.ErrorText(err)
			if failure.ExitCode(err) != tc.exit {
				t.Errorf("exit %d", failure.ExitCode(err))
			}
			for _, part := range tc.says {
				if !strings.Contains(text, part) {
					t.Errorf("it does not say %q:\n%s", part, text)
				}
			}
			for _, part := range tc.never {
				if strings.Contains(text, part) {
					t.Errorf("it says %q:\n%s", part, text)
				}
			}
			plugintest.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(tc.group), tc.group))
			if !slices.Equal(tc.group.Spec.Nodes, tc.nodes) {
				t.Errorf("the group has %q", tc.group.Spec.Nodes)
			}
			if cordoned := slices.Contains(tc.group.Spec.CordonedNodes, "n3"); cordoned == slices.Equal(tc.nodes, is) {
				t.Errorf("n3 is cordoned: %v", cordoned)
			}
		})
	}
}

func TestReplaceADeadHost(t *testing.T) {
	g := answering()
	g.Status.Members[2].LastSeen = &metav1.Time{Time: plugintest.Noon.Add(-time.Hour)}
	api := plugintest.Cluster(t, slices.Concat([]client.Object{g, on("second", "n1")}, joined())...)
	var out bytes.Buffer
	c := plugintest.Console(&out, plugintest.AtNoon)
	plugintest.Must(t, runReplace(t.Context(), c, api, replacing{from: "n3", to: "n4"}))
	for _, part := range []string{"n3 does not answer (last seen 1h0m0s ago)", "kubectl escache repair --host=n3", "docs/hosts/host-died.md"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("it does not say %q:\n%s", part, out.String())
		}
	}
	if strings.Contains(out.String(), "evacuate") {
		t.Errorf("a dead host cannot be evacuated:\n%s", out.String())
	}
}

func TestReplaceHostAgainSaysWhatIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		more []client.Object
		says []string
	}{
		"copies": {[]client.Object{on("second", "n1")}, []string{"Group g has n4 in the place of n3 already.\n", "second copy there: second\n", "What is left to do:"}},
		"a copy of another group": {[]client.Object{func() client.Object {
			v := on("far", "n1")
			v.Spec.Group = "g7"
			return v
		}()}, []string{"n3 has no copy of a volume of the group\n", "1 volume of another group has a copy on n3, too"}},
		"evacuation": {[]client.Object{drained("evacuate-n3")}, []string{"1. kubectl escache uncordon n3"}},
		"nothing":    {nil, []string{"Group g has n4 in the place of n3 already.\n", "n3 has no copy of a volume of the group: it can be switched off\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := answering()
			g.Spec.Nodes, g.Spec.CordonedNodes = []string{"n1", "n2", "n4"}, nil
			api := plugintest.Cluster(t, slices.Concat([]client.Object{g}, joined(), tc.more)...)
			var out bytes.Buffer
			c := plugintest.Console(&out, plugintest.AtNoon)
			plugintest.Must(t, runReplace(t.Context(), c, api, replacing{from: "n3", to: "n4", apply: true}))
			for _, part := range tc.says {
				if !strings.Contains(out.String(), part) {
					t.Errorf("it does not say %q:\n%s", part, out.String())
				}
			}
		})
	}
}

// Who changes the group between the check and the change wins.
func TestReplaceHostChangesOnlyWhatItHasSeen(t *testing.T) {
	api := interceptor.NewClient(plugintest.Cluster(t, append(joined(), answering())...), interceptor.Funcs{
		Patch: func(ctx context.Context, api client.WithWatch, o client.Object, patch client.Patch, options ...client.PatchOption) error {
			g := &v1alpha1.NodeGroup{}
			plugintest.Must(t, api.Get(ctx, client.ObjectKeyFromObject(o), g))
			g.Spec.Nodes[0] = "n9"
			plugintest.Must(t, api.Update(ctx, g))
			return api.Patch(ctx, o, patch, options...)
		},
	})
	c := plugintest.Console(&bytes.Buffer{}, plugintest.AtNoon)
	err := runReplace(t.Context(), c, api, replacing{from: "n3", to: "n4", apply: true})
	if err == nil || !strings.Contains(err.Error(), "NodeGroup g was changed meanwhile") {
		t.Error(err)
	}
}

// A user who may not read Nodes is told what is not known.
func TestReplaceHostWithoutTheRightToReadNodes(t *testing.T) {
	api := interceptor.NewClient(plugintest.Cluster(t, answering()), interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, is := o.(*corev1.Node); is {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, key.Name, nil)
			}
			return api.Get(ctx, key, o, options...)
		},
	})
	var out bytes.Buffer
	c := plugintest.Console(&out, plugintest.AtNoon)
	plugintest.Must(t, runReplace(t.Context(), c, api, replacing{from: "n3", to: "n4"}))
	if !strings.Contains(out.String(), "node n4 cannot be read") {
		t.Errorf("it says\n%s", out.String())
	}
}

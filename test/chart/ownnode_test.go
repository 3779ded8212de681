package chart

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ownNode has csi-node of one host change the Nodes of two, as a real API server lets it.
func ownNode(t *testing.T, c *controlPlane) {
	values := cases(t)["default"]
	for _, part := range []string{"rbac", "policy"} {
		c.must(render(t, values, "--show-only", "templates/node/"+part+".yaml"), "apply", "-f", "-")
	}
	for _, name := range []string{"mine", "others"} {
		c.must(fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s}}", name), "create", "-f", "-")
	}
	as := func(extra map[string][]string) func(node, patch string) error {
		config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
		if err != nil {
			t.Fatal(err)
		}
		config.Impersonate = rest.ImpersonationConfig{
			UserName: "system:serviceaccount:" + namespace + ":" + release + "-node", Groups: []string{"system:serviceaccounts", "system:authenticated"}, Extra: extra,
		}
		api, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return func(node, patch string) error {
			_, err := api.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	csiNode := as(map[string][]string{"authentication.kubernetes.io/node-name": {"mine"}})
	label := func(value int) string {
		return fmt.Sprintf(`{"metadata":{"labels":{"topology.escache.io/group":"g%d"}}}`, value)
	}

	deadline := time.Now().Add(time.Minute) // the API server takes seconds to see a policy
	err := csiNode("others", label(0))
	for n := 1; err == nil; n++ {
		if time.Now().After(deadline) {
			t.Fatal("it may change another Node")
		}
		time.Sleep(200 * time.Millisecond)
		err = csiNode("others", label(n))
	}
	if !strings.Contains(err.Error(), "the Node on which it runs, and no other") {
		t.Fatalf("another Node: %v", err)
	}
	if err := csiNode("mine", label(0)); err != nil {
		t.Errorf("its own Node: %v", err)
	}
	if err := csiNode("mine", `{"spec":{"unschedulable":true}}`); err == nil || !strings.Contains(err.Error(), "nothing in its spec") {
		t.Errorf("the spec of its own Node: %v", err)
	}
	if err := as(nil)("mine", label(1)); err == nil || !strings.Contains(err.Error(), "the Node on which it runs") {
		t.Errorf("with a token of no pod: %v", err)
	}
	c.must("", "label", "node", "others", "by=an-administrator")
	c.must("", "delete", "node", "mine", "others")
	for _, part := range []string{"policy", "rbac"} { // an installation makes its own
		c.must(render(t, values, "--show-only", "templates/node/"+part+".yaml"), "delete", "-f", "-")
	}
}

package plugintest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Group is a group with the hosts n1, n2 and n3, or those that are given.
func Group(name string, nodes ...string) *v1alpha1.NodeGroup {
	if len(nodes) == 0 {
		nodes = []string{"n1", "n2", "n3"}
	}
	return &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeGroupSpec{Nodes: nodes}}
}

package toolbuilder

import (
	"fmt"
	"slices"
	"strings"
)

// set is one program of one module under hack/tools, and its names.
type set struct {
	module   string   // directory under hack/tools
	pkg      string   // package to build, as the module's go.mod names it
	requires string   // module whose version is the program's version
	names    []string // the program; further names are links, and the program does what it is called
	// variables returns the linker variables (package path, dot, name) that hold the program's
	// version. nil: there are none.
	variables func(version string) map[string]string
}

// versionIn returns a function that sets one variable to the version.
func versionIn(variable string) func(string) map[string]string {
	return func(version string) map[string]string { return map[string]string{variable: version} }
}

// kubernetesVersion returns the variables that Kubernetes' own build sets. Without them the parts
// report v0.0.0 and cannot compare versions.
func kubernetesVersion(version string) map[string]string {
	number := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	variables := map[string]string{}
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		variables[pkg+".gitVersion"] = version
		variables[pkg+".gitMajor"] = number[0]
		variables[pkg+".gitMinor"] = number[1]
		variables[pkg+".gitTreeState"] = "clean"
	}
	return variables
}

// helm3Version returns the variables that Helm 3's own build sets: its version, and the version of
// Kubernetes for which `helm template` renders, which is that of k8s.io/client-go in its go.mod.
// Without it, that would be 1.20.
func helm3Version(version string) map[string]string {
	const helm, minor = "helm.sh/helm/v3/", "37"
	return map[string]string{
		helm + "internal/version.version":       version,
		helm + "pkg/chartutil.k8sVersionMinor":  minor,
		helm + "pkg/lint/rules.k8sVersionMinor": minor,
	}
}

// all returns every set, in the order in which All builds them.
func all() []set {
	kubernetes := set{
		module: "kubernetes", pkg: ".", requires: "k8s.io/kubernetes",
		names:     []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"},
		variables: kubernetesVersion,
	}
	// The kubelet runs on nodes, which are small and slow, so it carries nothing of the others.
	kubelet := set{
		module: "kubernetes", pkg: "k8s.io/kubernetes/cmd/kubelet", requires: "k8s.io/kubernetes",
		names: []string{"kubelet"}, variables: kubernetesVersion,
	}
	sets := []set{
		kubernetes,
		kubelet,
		{module: "etcd", pkg: "go.etcd.io/etcd/server/v3", requires: "go.etcd.io/etcd/server/v3", names: []string{"etcd"}},
	}
	for _, sidecar := range [][2]string{
		{"csi-provisioner", "external-provisioner/v6"},
		{"csi-attacher", "external-attacher/v4"},
		{"csi-resizer", "external-resizer/v2"},
		{"csi-snapshotter", "external-snapshotter/v8"},
		{"snapshot-controller", "external-snapshotter/v8"},
		{"csi-sanity", "csi-test/v5"},
	} {
		name, module := sidecar[0], "github.com/kubernetes-csi/"+sidecar[1]
		sets = append(sets, set{
			module: "csi", pkg: module + "/cmd/" + name, requires: module, variables: versionIn("main.version"), names: []string{name},
		})
	}
	const containerd = "github.com/containerd/containerd/v2"
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		sets = append(sets, set{
			module: "containerd", pkg: containerd + "/cmd/" + name, requires: containerd,
			variables: versionIn(containerd + "/version.Version"), names: []string{name},
		})
	}
	return append(sets,
		set{
			module: "helm", pkg: "helm.sh/helm/v4/cmd/helm", requires: "helm.sh/helm/v4",
			variables: versionIn("helm.sh/helm/v4/internal/version.version"), names: []string{"helm"},
		},
		set{
			module: "helm3", pkg: "helm.sh/helm/v3/cmd/helm", requires: "helm.sh/helm/v3",
			variables: helm3Version, names: []string{"helm3"},
		},
	)
}

// find returns the set that builds a program.
func find(name string) (set, error) {
	var known []string
	for _, s := range all() {
		if slices.Contains(s.names, name) {
			return s, nil
		}
		known = append(known, s.names...)
	}
	return set{}, fmt.Errorf("no tool %q; there are %v", name, known)
}

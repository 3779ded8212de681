package kubenode

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

// Node is one node of a cluster, as the others and it itself see it.
type Node struct {
	Name       string
	Address    string // on the network that leads to the API server
	PodNetwork string // the range of its pods, e.g. "10.88.1.0/24"
}

// Identity is what a node proves itself with, all in PEM but the kubeconfig.
type Identity struct {
	Kubeconfig       []byte // of the kubelet
	CA               []byte // signs those who may ask the kubelet
	Certificate, Key []byte // that the kubelet serves with
}

// File is one file for a node's payload.
type File struct {
	Path    string // absolute, on the node
	Mode    fs.FileMode
	Content []byte
}

// Files are those of one node. Gateway is its way to Services and to everything outside; others are
// the cluster's nodes, with or without itself.
func Files(node Node, identity Identity, gateway string, others []Node) ([]File, error) {
	network, err := cni(node.PodNetwork)
	if err != nil {
		return nil, err
	}
	files := []File{
		{"/etc/kubernetes/kubelet.kubeconfig", 0o600, identity.Kubeconfig},
		{"/etc/kubernetes/ca.crt", 0o644, identity.CA},
		{"/etc/kubernetes/kubelet.crt", 0o644, identity.Certificate},
		{"/etc/kubernetes/kubelet.key", 0o600, identity.Key},
		{"/etc/kubernetes/node.env", 0o644, environment(node, gateway, others)},
		{"/etc/cni/net.d/10-lab.conflist", 0o644, network},
		{"/etc/machine-id", 0o444, machineID(node.Name)},
	}
	for path, name := range map[string]string{
		"/etc/containerd/config.toml":   "containerd.toml",
		"/etc/kubernetes/kubelet.yaml":  "kubelet.yaml",
		"/etc/lab/boot.d/50-kubernetes": "boot.sh",
		"/etc/lab/services/containerd":  "containerd.sh",
		"/etc/lab/services/kubelet":     "kubelet.sh",
	} {
		content, err := source.ReadFile("files/" + name)
		if err != nil {
			return nil, err
		}
		mode := fs.FileMode(0o644)
		if filepath.Ext(name) == ".sh" {
			mode = 0o755
		}
		files = append(files, File{path, mode, content})
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

// environment is read by the boot script and the kubelet's.
func environment(node Node, gateway string, others []Node) []byte {
	var routes []string
	for _, other := range others {
		if other.Name != node.Name {
			routes = append(routes, other.PodNetwork+"="+other.Address)
		}
	}
	return fmt.Appendf(nil, "NODE_NAME=%s\nNODE_ADDRESS=%s\nGATEWAY=%s\nPOD_ROUTES=%q\n",
		node.Name, node.Address, gateway, strings.Join(routes, " "))
}

// cni is the network of pods: a pair of virtual cards each, addresses from the node's own range.
func cni(podNetwork string) ([]byte, error) {
	type object = map[string]any
	return json.Marshal(object{
		"cniVersion": "1.0.0", "name": "lab",
		"plugins": []object{{"type": "ptp", "ipam": object{
			"type": "host-local", "ranges": [][]object{{{"subnet": podNetwork}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
		}}},
	})
}

// machineID is the same at each boot of a node and another on each node, as the kubelet expects.
func machineID(name string) []byte {
	sum := sha256.Sum256([]byte("lab node " + name))
	return []byte(hex.EncodeToString(sum[:16]) + "\n")
}

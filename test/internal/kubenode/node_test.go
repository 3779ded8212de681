package kubenode

import (
	"encoding/json"
	"io/fs"
	"strings"
	"testing"
)

func cluster() []Node {
	return []Node{
		{Name: "n1", Address: "10.77.0.11", PodNetwork: "10.88.1.0/24"},
		{Name: "n2", Address: "10.77.0.12", PodNetwork: "10.88.2.0/24"},
		{Name: "n3", Address: "10.77.0.13", PodNetwork: "10.88.3.0/24"},
	}
}

func filesOf(t *testing.T, node Node) map[string]File {
	t.Helper()
	identity := Identity{Kubeconfig: []byte("config"), CA: []byte("ca"), Certificate: []byte("crt"), Key: []byte("key")}
	list, err := Files(node, identity, "10.77.0.1", cluster())
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]File{}
	for _, file := range list {
		if _, twice := files[file.Path]; twice {
			t.Errorf("%s is there twice", file.Path)
		}
		files[file.Path] = file
	}
	return files
}

func TestNodeKnowsTheWayToTheOthersPodsButNotToItsOwn(t *testing.T) {
	env := string(filesOf(t, cluster()[1])["/etc/kubernetes/node.env"].Content)
	for _, line := range []string{
		"NODE_NAME=n2\n", "NODE_ADDRESS=10.77.0.12\n", "GATEWAY=10.77.0.1\n",
		`POD_ROUTES="10.88.1.0/24=10.77.0.11 10.88.3.0/24=10.77.0.13"` + "\n",
	} {
		if !strings.Contains(env, line) {
			t.Errorf("%q is missing in\n%s", line, env)
		}
	}
}

func TestPodsGetAddressesOfTheNodesOwnRange(t *testing.T) {
	var network struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(filesOf(t, cluster()[2])["/etc/cni/net.d/10-lab.conflist"].Content, &network); err != nil {
		t.Fatal(err)
	}
	if got := network.Plugins[0].IPAM.Ranges[0][0].Subnet; got != "10.88.3.0/24" {
		t.Errorf("range %s", got)
	}
}

func TestScriptsCanBeRunAndSecretsAreForRootOnly(t *testing.T) {
	files := filesOf(t, cluster()[0])
	for path, mode := range map[string]fs.FileMode{
		"/etc/lab/services/kubelet": 0o755, "/etc/lab/services/containerd": 0o755, "/etc/lab/boot.d/50-kubernetes": 0o755,
		"/etc/kubernetes/kubelet.key": 0o600, "/etc/kubernetes/kubelet.kubeconfig": 0o600, "/etc/kubernetes/kubelet.yaml": 0o644,
	} {
		if file, ok := files[path]; !ok || file.Mode != mode || len(file.Content) == 0 {
			t.Errorf("%s: mode %o, %d bytes", path, file.Mode, len(file.Content))
		}
	}
}

func TestNodesHaveMachineIDsOfTheirOwn(t *testing.T) {
	ids := map[string]bool{}
	for _, node := range cluster() {
		id := string(filesOf(t, node)["/etc/machine-id"].Content)
		if len(strings.TrimSpace(id)) != 32 {
			t.Errorf("machine-id %q", id)
		}
		ids[id] = true
	}
	if len(ids) != 3 {
		t.Errorf("ids: %v", ids)
	}
}

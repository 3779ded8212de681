//go:build e2e

package controller

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/kubetest"
)

// skipped are the tests of csi-sanity that do not run, each with its reason. Any other skip fails.
var skipped = map[string]string{
	"accessibility requirements":  "a snapshot is wherever its pool is",
	"VolumeHealth":                "health is the node's to tell: it sees the cache",
	"Health":                      "the same",
	"max attach limit":            "a limit is the node's to report, and Kubernetes keeps to it before it publishes",
	"already published but is in": "read-only publishing is not declared: the mount's own option does it",
	"pagination should detect":    "disabled in csi-sanity itself",
}

func sanity(t *testing.T, w *world) {
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	binary := kubetest.Tools(t, "csi-sanity")["csi-sanity"]
	parameters := filepath.Join(d.dir, "parameters.yaml")
	must(t, os.WriteFile(parameters, []byte("clusterID: lab\npool: rbd\ncacheSize: 64Mi\nnodeGroups: g1\n"), 0o600))
	mutable := filepath.Join(d.dir, "mutable.yaml")
	must(t, os.WriteFile(mutable, []byte("maxDirtyAge: 5m\ncacheMode: writeback\n"), 0o600))
	node := playNode(t, d.dir)
	for name, args := range map[string][]string{
		"identity":   {"--csi.endpoint", d.socket(), "--ginkgo.focus", "Identity Service"},
		"controller": {"--csi.endpoint", node, "--csi.controllerendpoint", d.socket(), "--ginkgo.focus", `\[Controller Server\]`},
		"groups":     {"--csi.endpoint", node, "--csi.controllerendpoint", d.socket(), "--ginkgo.focus", `\[GroupController`},
	} {
		t.Run(name, func(t *testing.T) {
			args = append(args, "--ginkgo.v", "--ginkgo.no-color", "--csi.testvolumeparameters", parameters,
				"--csi.testvolumemutableparameters", mutable,
				"--csi.mountdir", filepath.Join(d.dir, "mount"), "--csi.stagingdir", filepath.Join(d.dir, "staging"))
			out, err := exec.Command(binary, args...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			checkSkipped(t, string(out))
			summary := regexp.MustCompile(`Ran \d+ of \d+ Specs[^\n]*\n[^\n]*`).FindString(string(out))
			if summary == "" || strings.Contains(summary, "Ran 0 of") {
				t.Errorf("nothing ran:\n%s", out)
			}
			t.Log(summary)
		})
	}
}

// checkSkipped fails for a test that was skipped although it could have run, or without a reason.
func checkSkipped(t *testing.T, out string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`\[SKIPPED\] \[[0-9.]+ seconds\]\n([^\n]*)`).FindAllStringSubmatch(out, -1) {
		known := false
		for part := range skipped {
			known = known || strings.Contains(strings.ToLower(match[1]), strings.ToLower(part))
		}
		if !known {
			t.Errorf("skipped without a reason here: %s", match[1])
		}
	}
}

// nodeService is n1's node service, as far as tests of the controller need one.
type nodeService struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedIdentityServer
}

func playNode(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "node.sock")
	listener, err := net.Listen("unix", path)
	must(t, err)
	server := grpc.NewServer()
	csi.RegisterNodeServer(server, nodeService{})
	csi.RegisterIdentityServer(server, nodeService{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return path
}

func (nodeService) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: "n1", AccessibleTopology: &csi.Topology{Segments: map[string]string{v1alpha1.TopologyKey: "g1"}},
	}, nil
}

func (nodeService) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (nodeService) NodePublishVolume(context.Context, *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, nil
}

func (nodeService) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (nodeService) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}},
	}, {
		Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE}},
	}}}, nil
}

func (nodeService) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (nodeService) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: v1alpha1.DriverName, VendorVersion: "test"}, nil
}

//go:build lab

package kubernetes

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// storeOfNames is a CSI driver that remembers nothing but makes every volume it is asked for.
type storeOfNames struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
}

func (storeOfNames) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "names.example.org", VendorVersion: "1"}, nil
}

func (storeOfNames) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

func (storeOfNames) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: &csi.PluginCapability_VolumeExpansion{
			Type: csi.PluginCapability_VolumeExpansion_ONLINE,
		}}},
	}}, nil
}

func (storeOfNames) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	var response csi.ControllerGetCapabilitiesResponse
	for _, kind := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	} {
		response.Capabilities = append(response.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: kind}},
		})
	}
	return &response, nil
}

func (storeOfNames) CreateVolume(_ context.Context, request *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId: request.GetName(), CapacityBytes: request.GetCapacityRange().GetRequiredBytes(),
	}}, nil
}

func (storeOfNames) DeleteVolume(context.Context, *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	return &csi.DeleteVolumeResponse{}, nil
}

func (storeOfNames) ControllerPublishVolume(
	context.Context, *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"published": "yes"}}, nil
}

func (storeOfNames) ControllerExpandVolume(
	_ context.Context, request *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: request.GetCapacityRange().GetRequiredBytes()}, nil
}

func (storeOfNames) GetCapacity(context.Context, *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	return &csi.GetCapacityResponse{AvailableCapacity: 1 << 40}, nil
}

// serve serves the driver until the returned function is called.
func serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, storeOfNames{})
	csi.RegisterControllerServer(server, storeOfNames{})
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return server.Stop
}

const claim = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: names}
provisioner: names.example.org
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: names.example.org}
spec: {attachRequired: true, storageCapacity: true}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: claim}
spec: {storageClassName: names, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

const attachment = `
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: n1}
spec: {drivers: [{name: names.example.org, nodeID: n1}]}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: attachment}
spec: {attacher: names.example.org, nodeName: n1, source: {persistentVolumeName: VOLUME}}
`

func TestSidecarsWaitForTheDriverAndMissItWhenItIsGone(t *testing.T) {
	c, kubectl := onLoopback(t)
	run := func(stdin string, args ...string) string {
		out, err := kubectl(stdin, args...)
		if err != nil {
			t.Fatal(args, out, err)
		}
		return out
	}
	dir, err := os.MkdirTemp("", "csi-") //nolint:usetesting // the path of a socket has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "csi.sock")
	sidecars, err := StartSidecars(t.Context(), SidecarConfig{
		Name: "driver-0", Dir: t.TempDir(), Socket: socket, Kubeconfig: c.Kubeconfig(), Namespace: "default",
		Programs: builtTools(t, SidecarPrograms()...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sidecars.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	run(claim, "apply", "-f", "-")
	time.Sleep(2 * time.Second) // long enough for a sidecar that does not like its flags to end
	if err := sidecars.Failed(); err != nil {
		t.Fatalf("without a socket they wait: %v", err)
	}
	stop := serve(t, socket)
	begin := time.Now()
	run("", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/claim", "--timeout=25s")
	t.Log("bound after", time.Since(begin))

	volume := run("", "get", "pvc", "claim", "-o", "jsonpath={.spec.volumeName}")
	run(strings.ReplaceAll(attachment, "VOLUME", volume), "apply", "-f", "-")
	run("", "wait", "--for=jsonpath={.status.attachmentMetadata.published}=yes", "volumeattachment/attachment", "--timeout=25s")
	run("", "patch", "pvc", "claim", "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	run("", "wait", "--for=jsonpath={.spec.capacity.storage}=2Gi", "pv/"+volume, "--timeout=25s")

	// One that has work when the driver is gone ends, and is started again beside the next driver.
	stop()
	run(strings.ReplaceAll(claim, "name: claim}", "name: claim-2}"), "apply", "-f", "-")
	deadline := time.Now().Add(20 * time.Second)
	for sidecars.Failed() == nil && time.Now().Before(deadline) {
		time.Sleep(100 * time.Millisecond)
	}
	if err := sidecars.Failed(); err == nil || !strings.Contains(err.Error(), "driver-0/csi-provisioner") {
		t.Errorf("the provisioner outlived its driver: %v", err)
	}
	serve(t, socket)
	if err := sidecars.StartEnded(); err != nil {
		t.Fatal(err)
	}
	run("", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/claim-2", "--timeout=25s")
	if err := sidecars.Failed(); err != nil {
		t.Errorf("after StartEnded: %v", err)
	}
}

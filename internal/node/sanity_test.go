package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// controller makes and attaches volumes on the fake host, as far as the sanity suite's node tests
// need it. The real controller has its own.
type controller struct {
	csi.UnimplementedControllerServer

	host *host
}

func (c *controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME, csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

func (c *controller) CreateVolume(_ context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if c.host.made != nil {
		c.host.made(r.GetName())
	} else {
		c.host.attached(r.GetName())
	}
	c.host.volumes[r.GetName()].Status.AttachedNode = ""
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: r.GetName(), CapacityBytes: r.GetCapacityRange().GetRequiredBytes()}}, nil
}

func (c *controller) DeleteVolume(_ context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if c.host.status(r.GetVolumeId()).Device != "" {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %s is still connected", r.GetVolumeId())
	}
	delete(c.host.volumes, r.GetVolumeId())
	return &csi.DeleteVolumeResponse{}, c.host.escached.DeleteReplica(refOf(r.GetVolumeId()), true)
}

func (c *controller) ControllerPublishVolume(
	_ context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	c.host.volumes[r.GetVolumeId()].Status.AttachedNode = r.GetNodeId()
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{v1alpha1.PublishContextEpoch: "3"}}, nil
}

func (c *controller) ControllerUnpublishVolume(
	_ context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	if v := c.host.volumes[r.GetVolumeId()]; v != nil {
		v.Status.AttachedNode = ""
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

func (c *controller) ControllerExpandVolume(
	_ context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	c.host.mu.Lock()
	defer c.host.mu.Unlock()
	c.host.volumes[r.GetVolumeId()].Spec.SizeBytes = r.GetCapacityRange().GetRequiredBytes()
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: r.GetCapacityRange().GetRequiredBytes(), NodeExpansionRequired: true}, nil
}

// TestSanity runs csi-test's node and identity tests on fakes.
func TestSanity(t *testing.T) {
	h := newHost()
	runSanity(t, h, h.service(), "mount")
	if len(h.table) != 0 {
		t.Errorf("mounts are left: %s", fmt.Sprint(h.table))
	}
}

// runSanity runs the tests over gRPC, with the interceptor and the sockets that csi-node uses.
// Ginkgo runs once in a process.
func runSanity(t *testing.T, h *host, service *Service, access string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sanity") //nolint:usetesting // short: a socket's path is bounded
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	calls := csiserver.Observer{Log: service.Logger, Code: Code, Seconds: NewCallMetric(prometheus.NewRegistry())}
	s := grpc.NewServer(grpc.UnaryInterceptor(calls.Intercept))
	csi.RegisterIdentityServer(s, service)
	csi.RegisterNodeServer(s, service)
	csi.RegisterControllerServer(s, &controller{host: h})
	listener, err := unixsocket.Listen(filepath.Join(dir, "csi.sock"), unixsocket.Modes{Directory: 0o755, Socket: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- csiserver.Serve(ctx, s, listener, time.Second) }()
	defer func() { cancel(); <-served }()

	config := sanity.NewTestConfig()
	config.Address = "unix://" + filepath.Join(dir, "csi.sock")
	config.TargetPath, config.StagingPath = filepath.Join(dir, "targets"), filepath.Join(dir, "staging")
	config.TestVolumeAccessType, config.TestVolumeSize, config.TestVolumeExpandSize = access, 1<<30, 2<<30
	sc := sanity.GinkgoTest(&config)
	defer sc.Finalize()
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.FocusStrings = []string{"Node Service", "Identity Service"}
	reporter.Succinct, reporter.NoColor = true, true
	if !ginkgo.RunSpecs(t, "csi-node", suite, reporter) {
		t.Error("csi-sanity failed")
	}
}

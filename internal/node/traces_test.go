package node

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/escacheclient"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/mounts"
	example "github.com/escache/escache-csi/test/tracetest"
)

// overSocket calls the host's escached over a unix socket, as csi-node does. The volume's device is a loop device.
type overSocket struct {
	*escacheclient.Client

	device string
}

func (c overSocket) DevConnect(ctx context.Context, r escache.ConnectRequest) (*escache.ConnectResponse, error) {
	answer, err := c.Client.DevConnect(ctx, r)
	if err == nil {
		answer.Device = c.device
	}
	return answer, err
}

func listenUnix(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	check(t, err)
	return l
}

// TestTheExampleIsWhatCSINodeDoes compares the trace in the docs with that of a volume that was mounted before.
// internal/escached/engine has the steps of escached.
func TestTheExampleIsWhatCSINodeDoes(t *testing.T) {
	if !privately(t) {
		return
	}
	h := newHost()
	realVolume(t, h, "v", 64<<20)
	handler, err := h.escached.Handler()
	check(t, err)
	socket, escached := listenUnix(t), &http.Server{Handler: handler}
	go func() { _ = escached.Serve(socket) }()
	defer func() { check(t, escached.Close()) }()
	client, err := escacheclient.New(escacheclient.Options{Node: "n1", UnixSocket: socket.Addr().String()})
	check(t, err)

	run, seen := command.NewExec(), tracetest.NewSpanRecorder()
	server := grpc.NewServer(csiserver.Traced(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen)))...)
	csi.RegisterNodeServer(server, New(Options{
		Node: "n1", Version: "test", Cache: overSocket{client, h.devices["v"]}, Kube: h, Mounter: mounts.NewMounter(run, nil),
		Filesystems: fs.NewTools(run, []string{"/proc/self/exe", inspectArgument}), Devices: NewKernelDevices(),
		Logger: slog.New(slog.DiscardHandler),
	}))
	l := listenUnix(t)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer func() { check(t, conn.Close()) }()
	kubelet, staging := csi.NewNodeClient(conn), t.TempDir()
	t.Cleanup(func() { _ = exec.Command("umount", staging).Run() })

	stage := stageOf("v", staging, mountCapability("ext4"))
	_, err = kubelet.NodeStageVolume(t.Context(), stage)
	check(t, err)
	_, err = kubelet.NodeUnstageVolume(t.Context(), unstageOf(staging))
	check(t, err)
	_, err = kubelet.NodeStageVolume(t.Context(), stage)
	check(t, err)
	server.GracefulStop() // A call's span ends after its answer.
	ended := seen.Ended()
	last := ended[len(ended)-1].SpanContext().TraceID()
	ended = slices.DeleteFunc(ended, func(s sdktrace.ReadOnlySpan) bool { return s.SpanContext().TraceID() != last })
	whole := example.Example(t, "../../docs/troubleshooting.md")
	if got, want := example.Tree(ended, "csi-node"), whole.Without("escached dev_connect"); !slices.Equal(got, want) {
		t.Errorf("it is\n%s\nand docs/troubleshooting.md has\n%s", got, want)
	}
}

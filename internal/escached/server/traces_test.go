package server

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/traces"
	"github.com/escache/escache-csi/internal/traces/export"
	"github.com/escache/escache-csi/test/tracetest"
)

// program is an engine whose dev_connect is one step, in which one program runs.
type program struct {
	untouched

	run *command.Exec
}

func (p program) DevConnect(ctx context.Context, _ escache.ConnectRequest) (_ escache.ConnectResponse, err error) {
	ctx, step := traces.Begin(ctx, "promote the replica")
	defer step.Done(&err)
	_, err = p.run.Run(ctx, command.Command{Name: "sh", Args: []string{"-c", "cat >/dev/null; exit 3"}, Stdin: []byte("planted")})
	return escache.ConnectResponse{}, err
}

// stager is a CSI Node service that connects through a local escached.
type stager struct {
	csi.UnimplementedNodeServer

	escached *escacheclient.Client
}

func (s stager) NodeStageVolume(ctx context.Context, _ *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	_, err := s.escached.DevConnect(ctx, escache.ConnectRequest{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "v1"}, Epoch: 1})
	return &csi.NodeStageVolumeResponse{}, err
}

func (s stager) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

// listen returns a unix socket.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	return l
}

// stage serves CSI and escached, each with its own traces, and calls NodeStageVolume. With "" as the
// collector nothing is traced.
func stage(t *testing.T, collector string) (*csi.NodeStageVolumeRequest, error) {
	t.Helper()
	silent := slog.New(slog.DiscardHandler)
	own, flushOwn, err := export.New(t.Context(), export.Options{Target: collector, Service: "escached", Log: silent})
	must(t, err)
	defer flushOwn()
	nodes, flushNodes, err := export.New(t.Context(), export.Options{Target: collector, Service: "csi-node", Log: silent})
	must(t, err)
	defer flushNodes()

	escached := &http.Server{Handler: Handler(program{run: command.NewExec()}, TCP{},
		func(context.Context) error { return nil }, Seen{Log: silent, Traces: own})}
	socket := listen(t)
	go func() { _ = escached.Serve(socket) }()
	defer func() { must(t, escached.Close()) }()
	client, err := escacheclient.New(escacheclient.Options{Node: "n1", UnixSocket: socket.Addr().String()})
	must(t, err)

	calls := csiserver.Observer{
		Log: silent, Code: func(error) codes.Code { return codes.Unavailable },
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds", Help: "Duration of the calls."}, []string{"method", "code"}),
	}
	server := grpc.NewServer(append(csiserver.Traced(nodes), grpc.UnaryInterceptor(calls.Intercept))...)
	csi.RegisterNodeServer(server, stager{escached: client})
	l := listen(t)
	go func() { _ = server.Serve(l) }()
	defer server.GracefulStop() // A call's span ends after its answer.
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	kubelet := csi.NewNodeClient(conn)
	_, err = kubelet.NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	must(t, err)
	request := &csi.NodeStageVolumeRequest{VolumeId: "pvc-1", Secrets: map[string]string{"userKey": "planted"}}
	_, err = kubelet.NodeStageVolume(t.Context(), request)
	return request, err
}

func TestOneTraceLeadsFromACSICallToAProgram(t *testing.T) {
	collector := tracetest.New(t)
	request, _ := stage(t, collector.Address)
	want := []string{
		"csi.v1.Node/NodeStageVolume", "escached dev_connect", "POST /v1/dev_connect", "promote the replica", "sh",
	}
	spans := collector.Await(len(want))
	if got := collector.Path("sh"); !slices.Equal(got, want) {
		t.Errorf("the path to the program is %q, not %q", got, want)
	}
	facts := map[string]string{}
	for _, s := range spans {
		for _, key := range []string{"process.exit.code", "escache.volume", "escached.node"} {
			if value := tracetest.Attribute(s, key); value != "" {
				facts[s.GetName()+" "+key] = value
			}
		}
		if s.GetName() == "csi.v1.Node/NodeGetCapabilities" {
			t.Error("a call that is repeated all the time is traced")
		}
	}
	for fact, value := range map[string]string{
		"sh process.exit.code": "3", "csi.v1.Node/NodeStageVolume escache.volume": request.GetVolumeId(),
		"escached dev_connect escached.node": "n1",
	} {
		if facts[fact] != value {
			t.Errorf("%s is %q, not %q", fact, facts[fact], value)
		}
	}
	if sent := collector.String(); strings.Contains(sent, "planted") {
		t.Errorf("a secret left the host:\n%s", sent)
	}
}

func TestWithoutACollectorCallsAreAnsweredAsEver(t *testing.T) {
	_, err := stage(t, "")
	if err == nil || !strings.Contains(err.Error(), "exit 3") {
		t.Errorf("got %v", err)
	}
}

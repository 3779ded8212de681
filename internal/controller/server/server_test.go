package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// slowBegun and slowEnds are the two moments of a slow call.
var slowBegun, slowEnds = make(chan struct{}), make(chan struct{})

// service does what the name of the volume says.
type service struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
}

func (service) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "driver"}, nil
}

func (service) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	switch r.GetName() {
	case "panic":
		panic("a bug")
	case "hang":
		<-ctx.Done()
		return nil, fmt.Errorf("waiting: %w", ctx.Err())
	case "slow":
		slowBegun <- struct{}{}
		<-slowEnds
	case "busy":
		return nil, fmt.Errorf("other call: %w", volumes.ErrBusy)
	case "bug":
		return nil, errors.New("nobody expected this")
	}
	return &csi.CreateVolumeResponse{}, nil
}

// lockedBuffer is a log that a server writes while a test reads.
type lockedBuffer struct {
	bytes.Buffer

	mu sync.Mutex
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

type running struct {
	socket   string
	log      *lockedBuffer
	registry *prometheus.Registry
	client   csi.ControllerClient
	stop     func() error
}

func serve(t *testing.T) running {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // a socket's path has 108 characters at most
	if err != nil {
		t.Fatal(err)
	}
	r := running{socket: filepath.Join(dir, "s"), log: &lockedBuffer{}, registry: prometheus.NewRegistry()}
	if err := os.WriteFile(r.socket, nil, 0o600); err != nil { // what a killed process has left
		t.Fatal(err)
	}
	s := New(Config{
		Socket: r.socket, Prepare: func(context.Context) error { return nil }, Service: service{}, Code: volumes.Code, Longest: 200 * time.Millisecond,
		Log: slog.New(slog.NewJSONHandler(r.log, nil)), Metrics: NewMetrics(r.registry),
	})
	listening, standsBy := context.WithCancel(context.Background())
	leading, leads := context.WithCancel(context.Background())
	ended, served := make(chan error, 1), make(chan error, 1)
	go func() { ended <- Standby{s}.Start(listening) }()
	go func() { served <- s.Start(leading) }()
	r.stop = sync.OnceValue(func() error { // as a manager does, which waits for what needs no leader before it ends the rest
		standsBy()
		err := <-ended
		leads()
		return errors.Join(err, <-served)
	})
	for !accepts(r.socket) { // gRPC waits a second after a refused dial, longer than some calls here have
		select {
		case <-t.Context().Done():
			t.Fatal("the server did not open its socket before the test's time was up")
		case err := <-ended:
			t.Fatalf("the server ended instead of opening its socket: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	conn, err := grpc.NewClient("unix://"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r.client = csi.NewControllerClient(conn)
	t.Cleanup(func() {
		conn.Close()
		_ = r.stop()
		os.RemoveAll(dir)
	})
	return r
}

func accepts(socket string) bool {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func TestErrorsGetTheirCodeAndAreLoggedOnce(t *testing.T) {
	r := serve(t)
	for name, code := range map[string]codes.Code{
		"fine": codes.OK, "busy": codes.Aborted, "bug": codes.Internal, "panic": codes.Internal, "hang": codes.DeadlineExceeded,
	} {
		_, err := r.client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, Secrets: map[string]string{"key": "very-secret"},
		}, grpc.WaitForReady(true))
		if status.Code(err) != code {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && strings.Contains(err.Error(), "request ") {
			t.Errorf("the text has a request id, so Kubernetes does not count its Events up: %v", err)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	text := r.log.String()
	if n := strings.Count(text, `"msg":"csi call"`); n != 5 {
		t.Errorf("%d lines for 5 calls:\n%s", n, text)
	}
	if n := strings.Count(text, `"request_id":"`); n < 5 {
		t.Errorf("%d request ids for 5 calls:\n%s", n, text)
	}
	if strings.Contains(text, "very-secret") || !strings.Contains(text, "stripped") {
		t.Errorf("secrets in the log:\n%s", text)
	}
	if _, err := os.Stat(r.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	calls := uint64(0)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			calls += m.GetHistogram().GetSampleCount()
		}
	}
	if calls != 5 {
		t.Errorf("%d calls counted", calls)
	}
}

func TestCallsWaitUntilTheReplicaLeadsAndIsPrepared(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") //nolint:usetesting // a socket's path has 108 characters at most
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	prepared := make(chan error)
	s := New(Config{
		Socket: filepath.Join(dir, "s"), Prepare: func(context.Context) error { return <-prepared }, Service: service{}, Code: volumes.Code, Longest: time.Minute,
		Log: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- Standby{s}.Start(ctx) }()
	conn, err := grpc.NewClient("unix://"+s.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(ctx context.Context) error {
		_, err := csi.NewControllerClient(conn).CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "fine"}, grpc.WaitForReady(true))
		return err
	}
	impatient, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	if err := call(impatient); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a standby answered: %v", err)
	}
	patient, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(patient, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.GetName() != "driver" {
		t.Errorf("a standby says that it is %v, %v", info, err)
	}
	answered := make(chan error)
	go func() { answered <- call(t.Context()) }()
	go func() { ended <- s.Start(ctx) }()
	select {
	case err := <-answered:
		t.Errorf("a replica that is not prepared answered: %v", err)
	case prepared <- nil:
	}
	if err := <-answered; err != nil {
		t.Errorf("the call that had waited: %v", err)
	}
	cancel()
	if err := errors.Join(<-ended, <-ended); err != nil {
		t.Error(err)
	}
}

func TestARunningCallEndsBeforeItsServer(t *testing.T) {
	r := serve(t)
	answered := make(chan error)
	go func() {
		_, err := r.client.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "slow"}, grpc.WaitForReady(true))
		answered <- err
	}()
	<-slowBegun
	stopped := make(chan error)
	go func() { stopped <- r.stop() }()
	for accepts(r.socket) { // until it has begun to end
		time.Sleep(time.Millisecond)
	}
	slowEnds <- struct{}{}
	if err := <-answered; err != nil {
		t.Errorf("the call that ran: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestAReplicaThatCannotPrepareSaysWhy(t *testing.T) {
	s := New(Config{
		Service: service{}, Metrics: NewMetrics(prometheus.NewRegistry()),
		Prepare: func(context.Context) error { return errors.New("no API server") },
	})
	if err := s.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "no API server") {
		t.Errorf("got %v", err)
	}
}

package registration

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func start(t *testing.T, o Options) (*Registrar, string) {
	t.Helper()
	r, socket, _ := startAndEnd(t, o)
	return r, socket
}

func startAndEnd(t *testing.T, o Options) (r *Registrar, socket string, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg") //nolint:usetesting // shorter than t.TempDir: a socket's path has at most 108 characters
	if err != nil {
		t.Fatal(err)
	}
	o.Driver, o.Endpoint, o.Logger = "d.example", "/csi.sock", slog.New(slog.DiscardHandler)
	o.Socket = filepath.Join(dir, "plugins_registry", "d.example-reg.sock")
	r = New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { _ = r.Run(ctx); close(done) }()
	end = func() { cancel(); <-done }
	t.Cleanup(func() { end(); _ = os.RemoveAll(dir) })
	return r, o.Socket, end
}

// kubelet asks as the kubelet's plugin manager does.
func kubelet(t *testing.T, socket string, registered bool) *registerapi.PluginInfo {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	status := &registerapi.RegistrationStatus{PluginRegistered: registered}
	if !registered {
		status.Error = "label collision"
	}
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil {
		t.Fatal(err)
	}
	return info
}

func appears(t *testing.T, socket string, unlike os.FileInfo) os.FileInfo {
	t.Helper()
	for deadline := time.Now().Add(2*watchInterval + time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if info, err := os.Lstat(socket); err == nil && (unlike == nil || !os.SameFile(info, unlike) || !info.ModTime().Equal(unlike.ModTime())) {
			return info
		}
	}
	t.Fatal("no new socket appeared")
	return nil
}

func TestTheKubeletLearnsTheDriver(t *testing.T) {
	r, socket := start(t, Options{})
	appears(t, socket, nil)
	info := kubelet(t, socket, true)
	if info.GetType() != "CSIPlugin" || info.GetName() != "d.example" || info.GetEndpoint() != "/csi.sock" || len(info.GetSupportedVersions()) != 1 {
		t.Errorf("%+v", info)
	}
	if p := r.Problem(); p != "" {
		t.Error(p)
	}
	kubelet(t, socket, false)
	if r.Problem() == "" {
		t.Error("a refusal is not told")
	}
}

func TestTheSocketComesBackAfterTheDirectoryWasRemoved(t *testing.T) {
	_, socket := start(t, Options{})
	first := appears(t, socket, nil)
	if err := os.RemoveAll(filepath.Dir(socket)); err != nil {
		t.Fatal(err)
	}
	appears(t, socket, first)
	kubelet(t, socket, true)
}

func TestTheSocketStaysUntilTheDriverLeaves(t *testing.T) {
	r, socket, end := startAndEnd(t, Options{})
	appears(t, socket, nil)
	end()
	if _, err := os.Lstat(socket); err != nil {
		t.Errorf("the kubelet would forget the driver during an upgrade: %v", err)
	}
	for range 2 {
		if err := r.Leave(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(socket); !os.IsNotExist(err) {
			t.Errorf("the socket is still there: %v", err)
		}
	}
}

func TestAgainMakesANewSocketAfterPreparing(t *testing.T) {
	prepared := make(chan struct{}, 1)
	r, socket := start(t, Options{Prepare: func(context.Context) error { prepared <- struct{}{}; return nil }})
	first := appears(t, socket, nil)
	select {
	case <-prepared:
		t.Error("prepared at the first registration")
	default:
	}
	r.Again()
	appears(t, socket, first)
	<-prepared
	kubelet(t, socket, true)
}

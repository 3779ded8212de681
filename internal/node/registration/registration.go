// Package registration makes the kubelet know the driver, without a sidecar: a socket in the kubelet's plugin directory answers
// who we are. The kubelet reads the directory when it starts and watches it afterwards.
package registration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/escache/escache-csi/internal/node/server"
)

// Options of a Registrar.
type Options struct {
	// Driver is the CSI driver's name, Endpoint its socket's path as the kubelet sees it.
	Driver   string
	Endpoint string
	// Socket is the path of the registration socket.
	Socket string
	// Prepare is called before the kubelet is made to read this node's properties anew.
	Prepare func(ctx context.Context) error
	Logger  *slog.Logger
}

// Registrar keeps the driver registered.
type Registrar struct {
	registerapi.UnimplementedRegistrationServer
	Options

	mu       sync.Mutex
	socket   os.FileInfo
	accepted bool
	refusal  string
	changed  chan struct{}
}

// New returns a Registrar.
func New(o Options) *Registrar {
	return &Registrar{Options: o, changed: make(chan struct{}, 1)}
}

// watchInterval is how often the socket is looked at: it is one stat.
const watchInterval = 5 * time.Second

// Run keeps the socket there until the context ends: it is made anew when it was removed, as with the directory under a
// kubelet that is set up anew, and when Again is called. The socket stays behind: the kubelet keeps a driver whose socket is
// there, so pods can be stopped as soon as csi-node is back. Leave takes it away.
func (r *Registrar) Run(ctx context.Context) error {
	stop := func() {}
	defer func() { stop() }()
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	again := false
	for {
		if again || r.missing() {
			listener, err := r.appear(ctx, again)
			if err != nil {
				r.Logger.WarnContext(ctx, "cannot register with the kubelet yet", "error", err)
			} else {
				again = false
				stop()
				stop = r.serve(ctx, listener)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-r.changed:
			again = true
		}
	}
}

// Again makes the kubelet read the driver's properties anew.
func (r *Registrar) Again() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Leave removes the socket that Run has left behind, with which the kubelet forgets the driver.
func (r *Registrar) Leave() error {
	if err := os.Remove(r.Socket); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove the registration socket: %w", err)
	}
	return nil
}

// Problem says why the kubelet does not know the driver; "" when it does, or has not asked yet.
func (r *Registrar) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusal
}

// missing reports whether the socket that was made is not at its path any more.
func (r *Registrar) missing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.socket == nil {
		return true
	}
	info, err := os.Lstat(r.Socket)
	return err != nil || !os.SameFile(info, r.socket)
}

// appear makes the socket. Renaming it into place is what the kubelet notices, also where one was there before.
func (r *Registrar) appear(ctx context.Context, again bool) (net.Listener, error) {
	if again && r.Prepare != nil {
		if err := r.Prepare(ctx); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	listener, err := server.Listen(r.Socket)
	if err != nil {
		return nil, err
	}
	info, err := os.Lstat(r.Socket)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	r.socket = info
	return listener, nil
}

// serve answers on the socket until the returned function is called.
func (r *Registrar) serve(ctx context.Context, listener net.Listener) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s := grpc.NewServer()
		registerapi.RegisterRegistrationServer(s, r)
		if err := server.Serve(ctx, s, listener, time.Second); err != nil {
			r.Logger.ErrorContext(ctx, "the registration socket failed", "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// GetInfo answers the kubelet's question who this is.
func (r *Registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.Driver, Endpoint: r.Endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus is told by the kubelet whether it took the driver. The kubelet tries again by itself.
func (r *Registrar) NotifyRegistrationStatus(
	ctx context.Context, status *registerapi.RegistrationStatus,
) (*registerapi.RegistrationStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.accepted = status.GetPluginRegistered()
	if r.accepted {
		r.refusal = ""
		r.Logger.InfoContext(ctx, "registered with the kubelet", "driver", r.Driver, "endpoint", r.Endpoint)
	} else {
		r.refusal = fmt.Sprintf("the kubelet does not take the driver: %s", status.GetError())
		r.Logger.WarnContext(ctx, "not registered", "error", status.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

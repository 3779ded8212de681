// Package registration registers the driver with the kubelet, without a sidecar. It serves a socket
// in the kubelet's plugin directory that says which driver this is. The kubelet reads the directory
// when it starts and watches it afterwards.
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

	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// Options configure a Registrar.
type Options struct {
	// Driver is the CSI driver's name. Endpoint is the path of its CSI socket as the kubelet sees
	// it.
	Driver   string
	Endpoint string
	// Socket is the path of the registration socket.
	Socket string
	// Prepare runs before the driver is registered again. If it fails, registering waits.
	Prepare func(ctx context.Context) error
	Logger  *slog.Logger
}

// Registrar keeps the driver registered with the kubelet.
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

// watchInterval is how often Run checks, with one stat, that the socket is there.
const watchInterval = 5 * time.Second

// Run keeps the socket in place until the context ends. It makes the socket again after Again was
// called, and if somebody has removed it, as happens with its directory if the kubelet is installed
// again. The socket stays when Run ends: the kubelet keeps a driver whose socket is there, so that
// pods can be stopped as soon as csi-node is back. Leave removes it.
func (r *Registrar) Run(ctx context.Context) error {
	stop := func() {}
	defer func() { stop() }()
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	again := false
	for {
		if again || r.missing() {
			listener, err := r.listen(ctx, again)
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

// Again makes the kubelet register the driver again, and so read the node's properties again.
func (r *Registrar) Again() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Leave removes the socket that Run has left behind. The kubelet then forgets the driver.
func (r *Registrar) Leave() error {
	if err := os.Remove(r.Socket); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove the registration socket: %w", err)
	}
	return nil
}

// Problem says why the kubelet has refused the driver. It is "" if the kubelet has accepted the
// driver or has not asked yet.
func (r *Registrar) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refusal
}

// missing reports whether the socket that Run made is not at its path any more.
func (r *Registrar) missing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.socket == nil {
		return true
	}
	info, err := os.Lstat(r.Socket)
	return err != nil || !os.SameFile(info, r.socket)
}

// listen makes the socket. The kubelet notices that it is moved into place, also over an older one.
func (r *Registrar) listen(ctx context.Context, again bool) (net.Listener, error) {
	if again && r.Prepare != nil {
		if err := r.Prepare(ctx); err != nil {
			return nil, err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	listener, err := unixsocket.Listen(r.Socket, unixsocket.Modes{Directory: 0o755, Socket: 0o600})
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
		if err := csiserver.Serve(ctx, s, listener, time.Second); err != nil {
			r.Logger.ErrorContext(ctx, "the registration socket failed", "error", err)
		}
	}()
	return func() { cancel(); <-done }
}

// GetInfo answers the kubelet: the driver's name and the path of its CSI socket.
func (r *Registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: r.Driver, Endpoint: r.Endpoint, SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus receives the kubelet's verdict. After a refusal the kubelet tries again
// by itself.
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
		r.refusal = fmt.Sprintf("the kubelet has refused the driver: %s", status.GetError())
		r.Logger.WarnContext(ctx, "the kubelet has refused the driver", "driver", r.Driver, "error", status.GetError())
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

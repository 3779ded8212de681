// Package hosts calls the escached on each node. It finds its address in the Kubernetes Node.
package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/hostcert"
)

// Options configure the calls to escacheds.
type Options struct {
	// Port of every escached's API, on its node's InternalIP.
	Port int
	// TLS files for the calls. If empty, calls go over plain HTTP, which is for tests only. ServerName
	// may be a pattern of names (hostcert.Name): then each node has to show a certificate of its own.
	TLS escacheclient.TLSFiles
	// Former is a name that hosts may still show instead of their own.
	Former escacheclient.FormerName
	// Dial opens the connections. leadership.Lease.Dial sends nothing unless this process leads.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeouts of the calls.
	Timeouts escacheclient.Timeouts
	// RepeatAfter is the pause before a call is repeated for the first time. 0: that of escacheclient.
	RepeatAfter time.Duration
	// UserAgent is how the controller appears in the hosts' logs.
	UserAgent string
	Log       *slog.Logger
	// Observe is called after each call.
	Observe func(call, code string, took time.Duration)
}

// Hosts reaches the escached on each node. It is safe for concurrent use.
type Hosts struct {
	options Options
	nodes   client.Reader // may be a cache: for addresses
	live    client.Reader // the API server itself: for whether a node is dead

	mu      sync.Mutex
	clients map[string]*endpoint
}

type endpoint struct {
	url    string
	client *escacheclient.Client
}

var _ volumes.Hosts = (*Hosts)(nil)

// New returns the hosts of the Kubernetes cluster. nodes may read from a cache, live must not.
func New(nodes, live client.Reader, options Options) *Hosts {
	return &Hosts{options: options, nodes: nodes, live: live, clients: map[string]*endpoint{}}
}

// Node returns a host's health, capacity and versions.
func (h *Hosts) Node(ctx context.Context, node string) (*escache.Node, error) {
	c, err := h.client(ctx, node)
	if err != nil {
		return nil, err
	}
	out, err := c.Node(ctx)
	return out, translate(err)
}

// Status returns a host's status of one volume.
func (h *Hosts) Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error) {
	c, err := h.client(ctx, node)
	if err != nil {
		return escache.VolumeStatus{}, err
	}
	out, err := c.VolumeStatus(ctx, volume)
	if err != nil {
		return escache.VolumeStatus{}, translate(err)
	}
	return *out, nil
}

// Volumes returns a host's status of all volumes of which it has a replica.
func (h *Hosts) Volumes(ctx context.Context, node string) ([]escache.VolumeStatus, error) {
	c, err := h.client(ctx, node)
	if err != nil {
		return nil, err
	}
	out, err := c.Status(ctx)
	if err != nil {
		return nil, translate(err)
	}
	return out.Volumes, nil
}

// PutReplica creates a replica, or updates who its partner is. It returns the host's identity. hostID is that
// of the machine that is meant, "" for whichever has the node's name.
func (h *Hosts) PutReplica(
	ctx context.Context, node, hostID string, request escache.ReplicaRequest,
) (created string, err error) {
	c, err := h.client(ctx, node)
	if err != nil {
		return "", err
	}
	created, err = c.For(hostID).PutReplica(ctx, request)
	return created, translate(err)
}

// DeleteReplica removes a replica that is known to be clean.
func (h *Hosts) DeleteReplica(ctx context.Context, node string, volume escache.VolumeRef) error {
	c, err := h.client(ctx, node)
	if err != nil {
		return err
	}
	return translate(c.DeleteReplica(ctx, volume))
}

// DiscardReplica removes a replica and what was written to it up to the attachment of this epoch.
func (h *Hosts) DiscardReplica(ctx context.Context, node string, volume escache.VolumeRef, epoch int64) error {
	c, err := h.client(ctx, node)
	if err != nil {
		return err
	}
	return translate(c.DiscardReplica(ctx, volume, epoch))
}

// DevConnect creates the volume's device on a host.
func (h *Hosts) DevConnect(ctx context.Context, node, hostID string, request escache.ConnectRequest) error {
	c, err := h.client(ctx, node)
	if err != nil {
		return err
	}
	_, err = c.For(hostID).DevConnect(ctx, request)
	return translate(err)
}

// Stop takes the volume's device down.
func (h *Hosts) Stop(ctx context.Context, at cachevolume.Attachment) error {
	c, err := h.of(ctx, at)
	if err != nil {
		return err
	}
	return translate(c.Stop(ctx, escache.StopRequest{VolumeRef: at.VolumeRef, Epoch: at.Epoch}))
}

// Abandon gives up the device of a holder that lost the volume.
func (h *Hosts) Abandon(ctx context.Context, at cachevolume.Attachment) error {
	c, err := h.of(ctx, at)
	if err != nil {
		return err
	}
	return translate(c.Abandon(ctx, at.VolumeRef, at.Epoch))
}

// Flush writes a volume back for at most longest, rounded down to whole seconds but at least one.
// The answer says how much is left.
func (h *Hosts) Flush(ctx context.Context, at cachevolume.Attachment, longest time.Duration) (*escache.FlushResponse, error) {
	c, err := h.of(ctx, at)
	if err != nil {
		return nil, err
	}
	out, err := c.Flush(ctx, escache.FlushRequest{
		VolumeRef: at.VolumeRef, Epoch: at.Epoch, TimeoutSeconds: max(int(longest/time.Second), 1),
	})
	return out, translate(err)
}

// Hold suspends a volume's I/O with a clean cache for at most longest, in whole seconds. Without pause its I/O may
// go on in the cache.
func (h *Hosts) Hold(
	ctx context.Context, at cachevolume.Attachment, longest time.Duration, pause bool,
) (*escache.HoldResponse, error) {
	c, err := h.of(ctx, at)
	if err != nil {
		return nil, err
	}
	held, err := c.Hold(ctx, escache.HoldRequest{
		VolumeRef: at.VolumeRef, Epoch: at.Epoch, MaxSeconds: int(longest / time.Second), Pause: pause,
	})
	return held, translate(err)
}

// Release ends a hold.
func (h *Hosts) Release(ctx context.Context, at cachevolume.Attachment) error {
	c, err := h.of(ctx, at)
	if err != nil {
		return err
	}
	return translate(c.Release(ctx, escache.ReleaseRequest{VolumeRef: at.VolumeRef, Epoch: at.Epoch}))
}

// SetMode switches a volume to write-through or write-back.
func (h *Hosts) SetMode(ctx context.Context, at cachevolume.Attachment, mode escache.Mode) error {
	c, err := h.of(ctx, at)
	if err != nil {
		return err
	}
	return translate(c.SetMode(ctx, escache.ModeRequest{VolumeRef: at.VolumeRef, Epoch: at.Epoch, Mode: mode}))
}

// SetOptions replaces the options of a volume's running cache.
func (h *Hosts) SetOptions(ctx context.Context, at cachevolume.Attachment, options escache.CacheOptions) error {
	c, err := h.of(ctx, at)
	if err != nil {
		return err
	}
	_, err = c.SetOptions(ctx, escache.OptionsRequest{VolumeRef: at.VolumeRef, Epoch: at.Epoch, Options: options})
	return translate(err)
}

// Trim has a volume's filesystem discard its free space, for at most longest, rounded down to whole seconds but at
// least one. The answer says how far it is.
func (h *Hosts) Trim(
	ctx context.Context, at cachevolume.Attachment, filesystem volumes.Filesystem, start int64, longest time.Duration,
) (*escache.TrimResponse, error) {
	c, err := h.of(ctx, at)
	if err != nil {
		return nil, err
	}
	trimmed, err := c.Trim(ctx, escache.TrimRequest{
		VolumeRef: at.VolumeRef, Epoch: at.Epoch, FSType: filesystem.Type, MountOptions: filesystem.MountOptions, StartByte: start,
		TimeoutSeconds: min(max(int(longest/time.Second), 1), 60),
	})
	return trimmed, translate(err)
}

// ReplicationAddress returns the node's address for replication: the one in its annotation, or else
// its InternalIP.
func (h *Hosts) ReplicationAddress(ctx context.Context, node string) (string, error) {
	n, err := read(ctx, h.nodes, node)
	if err != nil {
		return "", err
	}
	address := cmp.Or(n.Annotations[v1alpha1.AnnotationReplicationAddress], internalIP(n))
	if net.ParseIP(address) == nil {
		return "", fmt.Errorf("node %s: replication address %q is not an IP address; set the annotation %s: %w",
			node, address, v1alpha1.AnnotationReplicationAddress, volumes.ErrRefused)
	}
	return address, nil
}

// Death returns why Kubernetes has given a node up, if it has. It reads the Node from the API
// server.
func (h *Hosts) Death(ctx context.Context, node string) (authority.Death, error) {
	n, err := read(ctx, h.live, node)
	if errors.Is(err, volumes.ErrNotFound) {
		return authority.Death{Reason: fmt.Sprintf("node %s no longer exists in Kubernetes", node)}, nil
	}
	if err != nil {
		return authority.Death{}, err
	}
	for _, taint := range n.Spec.Taints {
		if taint.Key == corev1.TaintNodeOutOfService {
			return authority.Death{Reason: fmt.Sprintf("node %s is tainted %s=%s:%s", node, taint.Key, taint.Value, taint.Effect)}, nil
		}
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			since := c.LastTransitionTime.Format(time.RFC3339)
			return authority.Death{Reason: fmt.Sprintf("node %s has not been Ready since %s (%s)", node, since, c.Reason)}, nil
		}
	}
	return authority.Death{}, nil
}

// of returns the client for calls about an attachment.
func (h *Hosts) of(ctx context.Context, at cachevolume.Attachment) (*escacheclient.Client, error) {
	c, err := h.client(ctx, at.Node)
	if err != nil {
		return nil, err
	}
	return c.For(at.HostID), nil
}

// client returns the client of a node's escached, a new one if the node's address has changed.
func (h *Hosts) client(ctx context.Context, node string) (*escacheclient.Client, error) {
	n, err := read(ctx, h.nodes, node)
	if err != nil {
		return nil, err
	}
	ip := internalIP(n)
	if ip == "" {
		return nil, fmt.Errorf("node %s has no InternalIP: %w", node, volumes.ErrUnavailable)
	}
	scheme := "https"
	if h.options.TLS == (escacheclient.TLSFiles{}) {
		scheme = "http"
	}
	url := scheme + "://" + net.JoinHostPort(ip, strconv.Itoa(h.options.Port))
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.clients[node]; known != nil {
		if known.url == url {
			return known.client, nil
		}
		known.client.Close()
	}
	files := h.options.TLS
	files.ServerName = hostcert.Name(files.ServerName, node)
	made, err := escacheclient.New(escacheclient.Options{
		Node: node, BaseURL: url, TLS: files, Former: h.options.Former, AllowPlaintext: true, Dial: h.options.Dial,
		Timeout: h.options.Timeouts, RepeatAfter: h.options.RepeatAfter, UserAgent: h.options.UserAgent, Logger: h.options.Log,
		Observe: h.options.Observe,
	})
	if err != nil {
		return nil, translate(err)
	}
	h.clients[node] = &endpoint{url: url, client: made}
	return made, nil
}

func read(ctx context.Context, from client.Reader, name string) (*corev1.Node, error) {
	n := &corev1.Node{}
	err := from.Get(ctx, client.ObjectKey{Name: name}, n)
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no node %s in Kubernetes: %w", name, volumes.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	return n, nil
}

func internalIP(n *corev1.Node) string {
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return a.Address
		}
	}
	return ""
}

// translate wraps ErrUnavailable around every error that is not an answer of the escache API.
func translate(err error) error {
	var problem *escache.Problem
	if err == nil || errors.As(err, &problem) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", volumes.ErrUnavailable, err)
}

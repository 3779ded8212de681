// Package topology keeps the kubelet's knowledge of this node up to date: its group, which is the
// topology of its volumes, and its volume limit. The kubelet asks for both only when the driver
// registers.
package topology

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Info is what the kubelet knows of this node. When it changes, the driver must register again.
type Info struct {
	// Group is "" while no NodeGroup names the node.
	Group string
	// MaxVolumes is 0 while it is not known.
	MaxVolumes int64
}

// Follower registers the driver again when this node's Info differs from what the kubelet was told.
type Follower struct {
	Service   Service
	Kube      *kube.Client
	Node      string
	Registrar Registrar
	Log       *slog.Logger

	// pending is the Info for which the driver registers again, and since when; nil if it does not.
	pending *Info
	since   time.Time
}

type (
	// Service returns this node's Info: the current one, and the one that NodeGetInfo last
	// returned.
	Service interface {
		Info(ctx context.Context) (Info, error)
		Reported() (info Info, asked bool)
	}
	// Registrar registers the driver again.
	Registrar interface{ Again() }
)

// infoInterval is the time between two comparisons. Each is one small read of the Kubernetes API.
const infoInterval = 10 * time.Second

// registerTime is how long the kubelet may take to call NodeGetInfo before the driver registers
// once more.
const registerTime = time.Minute

// limitTime bounds how long the first registration waits for escached, so that the kubelet gets the
// volume limit at once and not by a second registration.
const limitTime = 20 * time.Second

// Await returns when the driver can register: the Node object exists, and escached has returned its
// volume limit or limitTime is over.
func (f *Follower) Await(ctx context.Context) {
	awaitNode(ctx, f.Kube, f.Node, time.Second)
	ctx, cancel := context.WithTimeout(ctx, limitTime)
	defer cancel()
	for ctx.Err() == nil {
		if info, err := f.Service.Info(ctx); err == nil && info.MaxVolumes > 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// awaitNode returns when the Node object exists. If a driver registers before the kubelet has
// created its Node, the kubelet writes a CSINode without an owner. The API server refuses it, and
// the kubelet tries again after longer and longer pauses.
func awaitNode(ctx context.Context, kubernetes *kube.Client, node string, pause time.Duration) {
	for {
		// Any other failure does not mean that the Node is missing: go on.
		if _, err := kubernetes.NodeLabel(ctx, node, v1alpha1.TopologyKey); !errors.Is(err, kube.ErrNotFound) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// Run compares and registers again until the context ends.
func (f *Follower) Run(ctx context.Context) error {
	ticker := time.NewTicker(infoInterval)
	defer ticker.Stop()
	for {
		f.compare(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// compare registers the driver again when this node's group or volume limit differs from what
// NodeGetInfo last returned. While a registration is pending it asks for no other one, because each
// ends the registration that is there.
func (f *Follower) compare(ctx context.Context) {
	reported, asked := f.Service.Reported()
	if !asked {
		return
	}
	info, err := f.Service.Info(ctx)
	if err != nil || info == reported {
		f.pending = nil
		return
	}
	if f.pending != nil && *f.pending == info && time.Since(f.since) < registerTime {
		return
	}
	f.Log.InfoContext(ctx, "this node has changed: registering again", "group", info.Group, "maxVolumes", info.MaxVolumes,
		"groupBefore", reported.Group)
	f.pending, f.since = &info, time.Now()
	f.Registrar.Again()
}

// Prepare removes the label of an earlier group from the Node: the kubelet does not register a
// driver whose topology contradicts it.
func (f *Follower) Prepare(ctx context.Context) error {
	info, err := f.Service.Info(ctx)
	if err != nil {
		return err
	}
	label, err := f.Kube.NodeLabel(ctx, f.Node, v1alpha1.TopologyKey)
	if err != nil || label == "" || label == info.Group {
		return err
	}
	return f.Kube.RemoveNodeLabel(ctx, f.Node, v1alpha1.TopologyKey)
}

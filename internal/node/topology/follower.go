// Package topology keeps what the kubelet knows of this node true: its group, which is the topology of
// its volumes, and its volume limit. The kubelet asks for both only when the driver registers.
package topology

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Info is what the kubelet remembers of this node. When it changes, the driver registers anew.
type Info struct {
	// Group is "" while no NodeGroup names the node.
	Group string
	// MaxVolumes is 0 while it is not known.
	MaxVolumes int64
}

// Follower has the driver registered anew when what the kubelet was reported of this node has changed.
type Follower struct {
	Service   Service
	Kube      *kube.Client
	Node      string
	Registrar Registrar
	Log       *slog.Logger

	// again is what the kubelet was last asked to come for, and since when.
	pending *Info
	since   time.Time
}

type (
	// Service knows what this node is, and what the kubelet was last reported.
	Service interface {
		Info(ctx context.Context) (Info, error)
		Reported() (info Info, asked bool)
	}
	// Registrar makes the kubelet ask again.
	Registrar interface{ Again() }
)

// infoInterval is how often the node's group is looked up: one small read.
const infoInterval = 10 * time.Second

// registerTime is how long the kubelet may take to ask again before it is called once more.
const registerTime = time.Minute

// limitTime bounds how long the first registration waits for escached, so that the kubelet gets the
// volume limit at once and not by a second registration.
const limitTime = 20 * time.Second

// Await returns when the driver can register: the Node object is there, and escached has answered what
// it can hold or had its time to.
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

// awaitNode returns when the Node object is there. A kubelet that hears of a driver before it has made
// its Node writes a CSINode without an owner. That is refused, and it tries again after longer and
// longer pauses.
func awaitNode(ctx context.Context, kubernetes *kube.Client, node string, pause time.Duration) {
	for {
		// Any other failure is not this one: the kubelet may know its Node though the API does not answer now.
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

// Run compares until the context ends.
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

// compare registers the driver anew when this node's group or volume limit differs from what
// NodeGetInfo last returned. While a registration is pending it asks for no other one, because each ends
// the registration that is there.
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
	f.Log.InfoContext(ctx, "this node has changed: registering anew", "group", info.Group, "maxVolumes", info.MaxVolumes,
		"groupBefore", reported.Group)
	f.pending, f.since = &info, time.Now()
	f.Registrar.Again()
}

// Prepare removes the label of an earlier group from the Node: the kubelet does not register a driver
// whose topology contradicts it.
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

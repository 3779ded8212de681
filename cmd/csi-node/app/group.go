package app

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/registration"
)

// follower has the driver registered anew when what the kubelet was told of this node is not so any more.
type follower struct {
	service   informer
	cluster   *kube.Client
	node      string
	registrar registrar
	logger    *slog.Logger

	// again is what the kubelet was last asked to come for, and since when.
	again *node.Info
	since time.Time
}

type (
	// informer knows what this node is, and what the kubelet was told it is.
	informer interface {
		Info(ctx context.Context) (node.Info, error)
		Told() (info node.Info, asked bool)
	}
	// registrar makes the kubelet ask anew.
	registrar interface{ Again() }
)

var (
	_ informer  = (*node.Service)(nil)
	_ registrar = (*registration.Registrar)(nil)
)

// infoInterval is how often the node's group is looked up: one small read.
const infoInterval = 10 * time.Second

// patience is how long the kubelet may take to ask anew before it is called once more.
const patience = time.Minute

// settleTime is how long the first registration waits for escached, so that the kubelet need not be told a volume limit later.
const settleTime = 20 * time.Second

func (f *follower) settle(ctx context.Context) {
	awaitNode(ctx, f.cluster, f.node, time.Second)
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for ctx.Err() == nil {
		if info, err := f.service.Info(ctx); err == nil && info.MaxVolumes > 0 {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// awaitNode returns when the Node object is there. A kubelet that is told of a driver before it has made its Node writes a CSINode without
// an owner, which is refused; it tries again after longer and longer pauses.
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

func (f *follower) run(ctx context.Context) error {
	ticker := time.NewTicker(infoInterval)
	defer ticker.Stop()
	for {
		f.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look compares what this node is with what the kubelet was told, however long ago: a group that was made between its question and the
// first look has changed too. While the kubelet has still to come it is not called again: each call also ends the registration there is.
func (f *follower) look(ctx context.Context) {
	told, asked := f.service.Told()
	if !asked {
		return
	}
	info, err := f.service.Info(ctx)
	if err != nil || info == told {
		f.again = nil
		return
	}
	if f.again != nil && *f.again == info && time.Since(f.since) < patience {
		return
	}
	f.logger.InfoContext(ctx, "this node has changed: registering anew", "group", info.Group, "maxVolumes", info.MaxVolumes,
		"groupBefore", told.Group)
	f.again, f.since = &info, time.Now()
	f.registrar.Again()
}

// prepare takes the label of an earlier group off the Node: the kubelet does not register a driver whose topology contradicts it.
func (f *follower) prepare(ctx context.Context) error {
	info, err := f.service.Info(ctx)
	if err != nil {
		return err
	}
	label, err := f.cluster.NodeLabel(ctx, f.node, v1alpha1.TopologyKey)
	if err != nil || label == "" || label == info.Group {
		return err
	}
	return f.cluster.RemoveNodeLabel(ctx, f.node, v1alpha1.TopologyKey)
}

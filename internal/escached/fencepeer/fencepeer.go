// Package fencepeer is DRBD's fence-peer handler: it asks the arbiter whether a replica may go on
// without its peer.
package fencepeer

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Exit codes of the fence-peer handler. With 7, which means that the peer was fenced, DRBD lets I/O
// go on. With 0, 1 or 126 it stays frozen.
const (
	Fenced  = 7
	Refused = 1
)

// Arbiter decides whether a replica may go on without its peer. OutdatePeer returns nil if it may;
// the peer is then on record as outdated.
type Arbiter interface {
	OutdatePeer(ctx context.Context, req escache.OutdatePeerRequest) error
}

// Store lists this host's logical volumes and their tags.
type Store interface {
	Volumes(ctx context.Context, readOnly bool) ([]lvm.Volume, error)
}

// Run asks about one resource and returns the handler's exit code, Fenced or Refused. The
// kernel runs it when a Primary loses its peer, and before a promotion without the peer. It does
// not need the service: it reads what it has to know from the tags, without LVM's locks.
func Run(ctx context.Context, cfg escached.Config, store Store, arbiter Arbiter, resource string, log *slog.Logger) int {
	log = log.With("resource", resource)
	req, err := questionFor(ctx, cfg, store, resource)
	if err != nil {
		log.Error("fence-peer: refused, I/O stays frozen", "error", err)
		return Refused
	}
	log = log.With("pool", req.Pool, "image", req.Image, "peer", req.Peer, "epoch", req.Epoch)
	ctx, cancel := context.WithTimeout(ctx, cfg.ArbiterTimeout)
	defer cancel()
	if err := arbiter.OutdatePeer(ctx, req); err != nil {
		log.Warn("fence-peer: not granted, I/O stays frozen", "error", err)
		return Refused
	}
	log.Info("fence-peer: granted, the peer is on record as outdated")
	return Fenced
}

func questionFor(ctx context.Context, cfg escached.Config, store Store, resource string) (escache.OutdatePeerRequest, error) {
	lvs, err := store.Volumes(ctx, true)
	if err != nil {
		return escache.OutdatePeerRequest{}, err
	}
	for _, lv := range lvs {
		if lv.Name != resource {
			continue
		}
		v, err := volume.Parse(lv)
		if err != nil {
			return escache.OutdatePeerRequest{}, err
		}
		return escache.OutdatePeerRequest{
			VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: cfg.Node, Peer: v.Peer.Name, Epoch: v.Epoch,
		}, nil
	}
	return escache.OutdatePeerRequest{}, fmt.Errorf("no logical volume %s in %s", resource, cfg.VolumeGroup)
}

// Package fencepeer is DRBD's fence-peer handler: it asks the arbiter whether a replica may go on
// without its peer.
package fencepeer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/problem"
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
// OutdateSelf returns nil if the replica here is on record as outdated.
type Arbiter interface {
	OutdatePeer(ctx context.Context, req escache.OutdatePeerRequest) error
	OutdateSelf(ctx context.Context, req escache.OutdateSelfRequest) error
}

// Store lists this host's logical volumes and their tags.
type Store interface {
	Volumes(ctx context.Context, readOnly bool) ([]lvm.Volume, error)
}

// Run asks about one resource and returns the handler's exit code, Fenced or Refused. The
// kernel runs it when a Primary loses its peer, and before a promotion without the peer. It does
// not need the service: it reads what it has to know from the tags, without LVM's locks. diskFailed
// reports whether a replica has the mark of a failed disk and is about to be promoted.
func Run(
	ctx context.Context, cfg escached.Config, store Store, arbiter Arbiter,
	resource string, diskFailed func(minor int) bool, log *slog.Logger,
) int {
	log = log.With("resource", resource)
	req, minor, err := questionFor(ctx, cfg, store, resource)
	if err != nil {
		log.Error("fence-peer: refused, I/O stays frozen", "error", err)
		return Refused
	}
	log = log.With("pool", req.Pool, "image", req.Image, "peer", req.Peer, "epoch", req.Epoch)
	ctx, cancel := context.WithTimeout(ctx, cfg.ArbiterTimeout)
	defer cancel()
	if diskFailed(minor) {
		if err := onlyCurrent(ctx, arbiter, req); err != nil {
			log.Warn("fence-peer: not granted, the disk here has failed before", "error", err)
			return Refused
		}
	}
	if err := arbiter.OutdatePeer(ctx, req); err != nil {
		log.Warn("fence-peer: not granted, I/O stays frozen", "error", err)
		return Refused
	}
	log.Info("fence-peer: granted, the peer is on record as outdated")
	return Fenced
}

// onlyCurrent returns nil if the copy here is the only current one on record, although its disk has
// failed before. Otherwise it is on record as outdated by now, or that is not known.
func onlyCurrent(ctx context.Context, arbiter Arbiter, req escache.OutdatePeerRequest) error {
	self := escache.OutdateSelfRequest{VolumeRef: req.VolumeRef, ImageID: req.ImageID, Node: req.Node, Peer: req.Peer}
	err := arbiter.OutdateSelf(ctx, self)
	if err == nil {
		return errors.New("this copy is on record as outdated")
	}
	if problem.Of(err).Code == escache.CodeOutdated {
		return nil
	}
	return err
}

func questionFor(ctx context.Context, cfg escached.Config, store Store, resource string) (escache.OutdatePeerRequest, int, error) {
	lvs, err := store.Volumes(ctx, true)
	if err != nil {
		return escache.OutdatePeerRequest{}, 0, err
	}
	for _, lv := range lvs {
		if lv.Name != resource {
			continue
		}
		v, err := volume.Parse(lv)
		if err != nil {
			return escache.OutdatePeerRequest{}, 0, err
		}
		return escache.OutdatePeerRequest{
			VolumeRef: v.VolumeRef, ImageID: v.ImageID, Node: cfg.Node, Peer: v.Peer.Name, Epoch: v.Epoch,
		}, v.Minor, nil
	}
	return escache.OutdatePeerRequest{}, 0, fmt.Errorf("no logical volume %s in %s", resource, cfg.VolumeGroup)
}

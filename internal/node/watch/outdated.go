package watch

import (
	"context"
	"errors"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
)

// updateOutdated makes the list of outdated nodes match what DRBD reports. It adds a node whose
// disk has failed: while the link is up, DRBD goes on without that copy and asks nobody. It adds the
// peer again if this node goes on without it and the record has lost that: etcd was restored, or
// somebody has edited the record. It removes the peer when the peer has a current copy again. It does
// both in one step if this node's disk failed before the peer was removed: a Primary without a disk
// accepts a link only to a current copy.
func (w *Watch) updateOutdated(ctx context.Context, v *volume, s escache.VolumeStatus) {
	if s.Role != escache.RolePrimary {
		return
	}
	outdated := v.object.Status.IsOutdated
	for _, peer := range s.Peers {
		var err error
		switch {
		case outdated(peer.Name) && health.IsCurrent(s, peer.Name):
			err = w.writeOutdated(ctx, v, change{off: peer.Name, holds: health.IsCurrent, peer: peer.Name})
		case !outdated(peer.Name) && health.IsDiskless(s, peer.Name):
			err = w.writeOutdated(ctx, v, change{on: peer.Name, holds: health.IsDiskless, peer: peer.Name})
		case !outdated(peer.Name) && health.GoesOnWithout(s, peer.Name):
			err = w.writeOutdated(ctx, v, change{on: peer.Name, holds: health.GoesOnWithout, peer: peer.Name})
		case !outdated(w.Node) && health.LivesOnPeer(s, peer.Name):
			err = w.writeOutdated(ctx, v, change{on: w.Node, off: peer.Name, holds: health.LivesOnPeer, peer: peer.Name})
		}
		if err != nil && !errors.Is(err, kube.ErrConflict) {
			w.Logger.WarnContext(ctx, "cannot update the list of outdated nodes", "volume", v.object.Name, "peer", peer.Name, "error", err)
		}
	}
}

// change adds the node on to the list and removes the node off. holds must be true for the peer
// just before.
type change struct {
	on, off string
	holds   func(s escache.VolumeStatus, peer string) bool
	peer    string
}

// of returns the list after the change, and whether that differs from the list before.
func (c change) of(s v1alpha1.CacheVolumeStatus) (list []string, differs bool) {
	list = s.OutdatedWithout(c.off)
	differs = len(list) != len(s.Outdated)
	if c.on != "" && !s.IsOutdated(c.on) {
		return append(list, c.on), true
	}
	return list, differs
}

// writeOutdated changes the list. It is safe because it reads the record first and the state
// afterwards: if the peer is lost and recorded as outdated in between, the record changes and the
// compare-and-swap fails.
func (w *Watch) writeOutdated(ctx context.Context, v *volume, c change) error {
	object, err := w.Kube.Volume(ctx, v.object.Name)
	if err != nil {
		return err
	}
	v.object = object
	list, differs := c.of(object.Status)
	if object.Status.AttachedNode != w.Node || object.Status.IsOutdated(w.Node) || !differs {
		return nil
	}
	// At least one replica must stay current.
	if c.on != "" && !slices.ContainsFunc(object.Spec.Replicas, func(r string) bool { return !slices.Contains(list, r) }) {
		return nil
	}
	status, err := w.Cache.VolumeStatus(ctx, v.ref)
	if err != nil {
		return err
	}
	if status.Role != escache.RolePrimary || status.Epoch != object.Status.Epoch || !c.holds(*status, c.peer) {
		return nil
	}
	changed, err := w.Kube.PatchStatus(ctx, object, map[string]any{"outdated": list})
	if err != nil {
		return err
	}
	v.object = changed
	w.Logger.WarnContext(ctx, "the list of outdated nodes has changed", "volume", object.Name, "from", object.Status.Outdated, "to", list)
	return nil
}

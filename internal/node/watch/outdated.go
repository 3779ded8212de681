package watch

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
)

// outdatedInterval is the time between two reads of the record of a volume that goes on without one of its copies.
const outdatedInterval = 10 * time.Second

// updateOutdated makes the list of outdated nodes match what DRBD reports: see shown. The record may have changed since
// the watch has seen it: etcd was restored, somebody has edited it, or the peer has put itself on the list. So while one
// of the copies is not current, updateOutdated reads the record every outdatedInterval, and once more when both are. After
// that it reads nothing until a copy is lost. A peer that DRBD calls DUnknown asks for no change of the list, so nothing
// is read for it.
func (w *Watch) updateOutdated(ctx context.Context, v *volume, s escache.VolumeStatus, now time.Time) {
	if s.Role != escache.RolePrimary {
		return
	}
	for _, peer := range s.Peers {
		current := health.IsCurrent(s, peer.Name)
		if !current && v.outdatedAfter.IsZero() {
			v.outdatedAfter = now
		}
		c, differs := w.shown(v, s, peer.Name)
		due := c.holds != nil && !v.outdatedAfter.IsZero() && !now.Before(v.outdatedAfter)
		if !differs && !due {
			continue
		}
		v.outdatedAfter = now.Add(outdatedInterval)
		err := w.writeOutdated(ctx, v, c)
		if err == nil && current {
			v.outdatedAfter = time.Time{}
		}
		if err != nil && !errors.Is(err, kube.ErrConflict) && !errors.Is(err, kube.ErrUnavailable) {
			w.Logger.WarnContext(ctx, "cannot update the list of outdated nodes", "volume", v.object.Name, "peer", peer.Name, "error", err)
		}
	}
}

// shown returns the change of the list that DRBD's state asks for, if any, and whether the record as last seen lacks it.
// The list gets a node whose disk has failed: while the link is up, DRBD goes on without that copy and asks nobody. It
// gets the peer if this node goes on without it: the arbiter has put it there, and the record may have lost that. It
// loses the peer when that has a current copy again. It does both in one step if this node's disk failed before the peer
// was removed: a Primary without a disk accepts a link only to a current copy.
func (w *Watch) shown(v *volume, s escache.VolumeStatus, peer string) (c change, differs bool) {
	outdated := v.object.Status.IsOutdated
	switch {
	case health.IsCurrent(s, peer):
		return change{off: peer, holds: health.IsCurrent, peer: peer}, outdated(peer)
	case health.IsDiskless(s, peer):
		return change{on: peer, holds: health.IsDiskless, peer: peer}, !outdated(peer)
	case health.GoesOnWithout(s, peer):
		return change{on: peer, holds: health.GoesOnWithout, peer: peer}, !outdated(peer)
	case health.LivesOnPeer(s, peer):
		return change{on: w.Node, off: peer, holds: health.LivesOnPeer, peer: peer}, !outdated(w.Node)
	}
	return change{}, false
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
	if object.Status.Epoch < v.object.Status.Epoch {
		return nil // it was set back to before this attachment, and this node must not change it
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

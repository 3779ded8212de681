package watch

import (
	"context"
	"errors"
	"slices"

	api "github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/node/cluster"
	"github.com/escache/escache-csi/internal/node/health"
)

// record keeps the list of outdated nodes as it is seen to be: a copy whose disk has failed goes onto it, for with the link up DRBD asks
// nobody before it goes on without that copy; and the peer leaves it once it holds a current copy again.
func (w *Watch) record(ctx context.Context, v *volume, s api.VolumeStatus) {
	if s.Role != api.RolePrimary {
		return
	}
	outdated := v.object.Status.IsOutdated
	for _, peer := range s.Peers {
		var err error
		switch {
		case outdated(peer.Name) && health.IsCurrent(s, peer.Name):
			err = w.rewrite(ctx, v, peer.Name, false, health.IsCurrent)
		case !outdated(peer.Name) && health.IsDiskless(s, peer.Name):
			err = w.rewrite(ctx, v, peer.Name, true, health.IsDiskless)
		case !outdated(w.Node) && health.LivesOnPeer(s, peer.Name):
			err = w.rewrite(ctx, v, w.Node, true, func(now api.VolumeStatus, _ string) bool { return health.LivesOnPeer(now, peer.Name) })
		}
		if err != nil && !errors.Is(err, cluster.ErrConflict) {
			w.Logger.WarnContext(ctx, "cannot keep the list of outdated nodes", "volume", v.object.Name, "peer", peer.Name, "error", err)
		}
	}
}

// rewrite puts a node on the list or takes it off. The order is what makes it safe: the record is read first and the state after it, so a
// peer that is lost and outdated in between changes the record, and the compare-and-swap fails.
func (w *Watch) rewrite(ctx context.Context, v *volume, node string, outdated bool, holds func(api.VolumeStatus, string) bool) error {
	object, err := w.Cluster.Volume(ctx, v.object.Name)
	if err != nil {
		return err
	}
	v.object = object
	if object.Status.AttachedNode != w.Node || object.Status.IsOutdated(w.Node) || object.Status.IsOutdated(node) == outdated {
		return nil
	}
	// The last copy that counts stays one: another on the list may be current by now, but nobody has taken it off yet.
	if outdated && !slices.ContainsFunc(object.Spec.Replicas, func(r string) bool { return r != node && !object.Status.IsOutdated(r) }) {
		return nil
	}
	status, err := w.Cache.VolumeStatus(ctx, v.ref)
	if err != nil {
		return err
	}
	if status.Role != api.RolePrimary || status.Epoch != object.Status.Epoch || !holds(*status, node) {
		return nil
	}
	list := object.Status.OutdatedWithout(node)
	if outdated {
		list = append(list, node)
	}
	changed, err := w.Cluster.PatchStatus(ctx, object, map[string]any{"outdated": list})
	if err != nil {
		return err
	}
	v.object = changed
	w.Logger.WarnContext(ctx, "the list of outdated nodes has changed", "volume", object.Name, "node", node, "outdated", outdated)
	return nil
}

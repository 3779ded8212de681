package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// fencedHolders returns the hosts of replicas, other than the node's, on which a fenced client may have had
// its device. That of a client whose node is not known may be on any of them.
func fencedHolders(v *v1alpha1.CacheVolume, node string) []string {
	return slices.DeleteFunc(slices.Clone(v.Spec.Replicas), func(holder string) bool {
		return holder == node || !slices.ContainsFunc(v.Status.Fenced, func(c v1alpha1.FencedClient) bool {
			return c.Node == holder || c.Node == ""
		})
	})
}

// formerHolders returns the fenced holders, and the hosts that answer that they have a device of the volume,
// or may have. The truth is in Ceph, so theirs is left over from an attachment that has ended.
func (s *Steps) formerHolders(ctx context.Context, v *v1alpha1.CacheVolume, node string) []string {
	former := fencedHolders(v, node)
	ask := slices.DeleteFunc(s.WellReplicas(v), func(other string) bool { return other == node || slices.Contains(former, other) })
	for other, report := range s.Reports(ctx, v, ask) {
		if status, err := report.Status(); err == nil && authority.HasDevice(status) {
			former = append(former, other)
		}
	}
	return former
}

// abandon makes earlier holders whose Ceph clients were fenced give up their device before the node
// connects its own. See abandonOn.
func (s *Steps) abandon(ctx context.Context, v *v1alpha1.CacheVolume, node string) (open []string, err error) {
	return s.abandonOn(ctx, v, node, fencedHolders(v, node))
}

// abandonOn makes hosts give up their device before the node connects its own. They do so only on proofs that
// they find themselves. One that lives and is linked to the node keeps it from being promoted. What such
// a holder has acknowledged is on its peer too, or in Ceph. One that does not answer is not waited for, and
// neither is one that fails and is not linked: it keeps nobody out. It returns the holders that have given
// their device up while it is open: their I/O fails and their link is down, and their replica cannot be
// used or removed before the device is closed.
func (s *Steps) abandonOn(ctx context.Context, v *v1alpha1.CacheVolume, node string, holders []string) (open []string, err error) {
	for _, holder := range holders {
		err := s.abandonAt(ctx, v, holder)
		problem, answered := errors.AsType[*escache.Problem](err)
		if answered && problem.Code == escache.CodeDeviceOpen {
			open = append(open, holder)
			continue
		}
		if err == nil {
			continue
		}
		s.Log.WarnContext(ctx, "an earlier holder does not give up its device", "volume", v.Name, "node", holder, "error", err)
		status, statusErr := s.Hosts.Status(ctx, holder, cachevolume.Ref(v))
		if authority.KeepsOut(authority.Heard(v, holder, status, statusErr)) {
			return nil, fmt.Errorf("volume %s: node %s has lost it and still has its device, which keeps node %s out: %w: %w",
				v.Name, holder, node, err, ErrUnavailable)
		}
	}
	return open, nil
}

// abandonAt asks a host once to give up its device. The epoch is one that the host may have seen: what it has of the
// volume can be discarded afterwards.
func (s *Steps) abandonAt(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	at := cachevolume.On(v, node)
	at.Epoch = given(v)
	return s.Hosts.Abandon(ctx, at)
}

// WithoutLeftovers has the hosts of a detached volume whose truth is in Ceph give up the device of an attachment that
// has ended. Nobody stages the volume there any more, so otherwise it would stay until the host is booted again. Only
// hosts that have such a device by the caller's reports are asked, once: see authority.Leftovers. WithoutLeftovers
// returns the reports as they are afterwards. A host that keeps its device, for whatever reason, has it in them, and
// the caller decides what that means.
func (s *Steps) WithoutLeftovers(
	ctx context.Context, v *v1alpha1.CacheVolume, reports map[string]authority.Report,
) map[string]authority.Report {
	left := authority.Leftovers(v, reports)
	if len(left) == 0 {
		return reports
	}
	kept := onEach(left, func(node string) error { return s.abandonAt(ctx, v, node) })
	for _, node := range left {
		if err := kept[node]; err != nil {
			s.Log.WarnContext(ctx, "an earlier holder does not give up its device", "volume", v.Name, "node", node, "error", err)
		} else {
			s.Log.InfoContext(ctx, "an earlier holder has given up its device", "volume", v.Name, "node", node)
		}
	}
	// With a device gone, its peer reports something else, too.
	asked := slices.DeleteFunc(slices.Clone(v.Spec.Replicas), func(node string) bool { _, was := reports[node]; return !was })
	now := maps.Clone(reports)
	maps.Copy(now, s.Reports(ctx, v, asked))
	for node, err := range kept {
		now[node] = now[node].Keeping(err)
	}
	return now
}

// WithoutOwnDevice has the node give up its device of an attachment that has ended, before it gets the volume again, if
// LayAnew is to remove its replica. It refuses while the device is there, and while escached does not say whether it is.
// Once the record says that the node has the volume, nobody can remove that device: neither escached nor csi-node can
// prove any more that it is left over. A device on a replica that stays is replaced when the volume is staged. It is not
// given up, because that makes the replica outdated.
func (s *Steps) WithoutOwnDevice(ctx context.Context, v *v1alpha1.CacheVolume, plan authority.Attachment, node string) error {
	if plan.TakeOver || v.Status.AttachedNode != "" || !s.replacesOwn(v, plan, node) {
		return nil
	}
	own := s.WithoutLeftovers(ctx, v, s.Reports(ctx, v, []string{node}))[node]
	status, err := own.Status()
	if _, refused := errors.AsType[*escache.Problem](err); refused || unreachable(err) {
		return fmt.Errorf("volume %s: node %s does not say whether it still has the device of an earlier attachment: %w: %w",
			v.Name, node, err, ErrUnavailable)
	}
	if err != nil || !authority.HasDevice(status) {
		return nil //nolint:nilerr // another machine has the node's name: what the first one had is not there
	}
	return fmt.Errorf("volume %s: node %s still has the device of an earlier attachment, and its replica has to be created again; it gets "+
		"the volume when the device is gone, which is when no pod there uses it: %w", v.Name, node, ErrUnavailable)
}

// replacesOwn reports whether LayAnew removes the node's own replica, as far as that is known before.
func (s *Steps) replacesOwn(v *v1alpha1.CacheVolume, plan authority.Attachment, node string) bool {
	if plan.Relay || slices.Contains(plan.Renew, node) {
		return true
	}
	partner := authority.Partner(v, node)
	if s.Book.Ready(v.Spec.Group, partner) {
		return false
	}
	_, err := s.Book.Partners(v, node, partner)
	return err == nil // another host stands in for the partner
}

// recordAside puts the replicas of hosts that keep them for now on the list of what their group has to
// clean up.
func (s *Steps) recordAside(ctx context.Context, v *v1alpha1.CacheVolume, aside []string) error {
	var stale []v1alpha1.StaleReplica
	for _, node := range aside {
		stale = append(stale, s.stale(v, node))
	}
	return s.recordStale(ctx, v.Spec.Group, stale)
}

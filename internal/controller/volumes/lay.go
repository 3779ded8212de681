package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/placement"
)

// TakeOver prepares a volume that may be dirty for a node that has a current copy. The node's own
// replica must be there. Its partner's is laid if that is possible; a partner that fails, in
// whatever way, does not keep the node from its own copy.
func (s *Steps) TakeOver(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	if _, err := s.abandon(ctx, v, node); err != nil {
		return err
	}
	partner := authority.Partner(v, node)
	request, err := s.replicaRequest(ctx, v)
	if withoutAddress(err, partner) {
		return s.takeOverAsItIs(ctx, v, node, err)
	}
	if err != nil {
		return err
	}
	request.MustExist = true
	before := v.DeepCopy()
	failures := s.putReplicas(ctx, v, v.Spec.Replicas, request)
	if failure := failures[node]; failure != nil {
		return failure
	}
	if replaced(before, v, node) {
		return fmt.Errorf("volume %s: another machine answers in the place of node %s, which has the copy: %w",
			v.Name, node, ErrUnavailable)
	}
	if replaced(before, v, partner) && !v.Status.IsOutdated(partner) {
		v.Status.Outdated = append(v.Status.Outdated, partner)
	}
	failure := failures[partner]
	if isMissing(failure) {
		failure = s.refill(ctx, v, partner, request)
	}
	if failure != nil {
		s.Log.WarnContext(ctx, "attaching without the partner", "volume", v.Name, "node", node, "partner", partner, "error", failure)
	}
	if slices.Equal(before.Status.Hosts, v.Status.Hosts) {
		return nil
	}
	return s.UpdateStatus(ctx, v, "its replicas are on these machines")
}

// withoutAddress reports whether a request for replicas failed because Kubernetes knows no replication address of a host: its
// Node is deleted, or tells of none.
func withoutAddress(err error, host string) bool {
	failure, ofHost := errors.AsType[*hostError](err)
	return ofHost && failure.host == host && (errors.Is(err, ErrNotFound) || errors.Is(err, ErrRefused))
}

// takeOverAsItIs is TakeOver where the partner has no address, which every request for a replica has to tell. So the node's
// replica keeps the partner and the link that it has. The promotion asks the arbiter, as it does for a partner that is down.
// The node's host has to answer that it is the one on record, and has its replica.
func (s *Steps) takeOverAsItIs(ctx context.Context, v *v1alpha1.CacheVolume, node string, failure error) error {
	status, err := s.Reports(ctx, v, []string{node})[node].Status()
	if err != nil {
		return fmt.Errorf("volume %s: nothing is known about the copy on node %s: %w: %w", v.Name, node, err, ErrUnavailable)
	}
	s.Log.WarnContext(ctx, "attaching without the partner: the replica stays as it is", "volume", v.Name, "node", node, "error", failure)
	if !v.Status.SetHostID(node, status.HostID) {
		return nil
	}
	return s.UpdateStatus(ctx, v, "its replica is on this machine")
}

// replaced reports whether the node's replica is on another machine now than it was before.
func replaced(before, now *v1alpha1.CacheVolume, node string) bool {
	known := before.Status.HostID(node)
	return known != "" && known != now.Status.HostID(node)
}

// refill lays an empty replica on a host that has lost its own. The record calls it outdated first:
// until it is filled it must not be taken for a copy.
func (s *Steps) refill(ctx context.Context, v *v1alpha1.CacheVolume, node string, request escache.ReplicaRequest) error {
	if !v.Status.IsOutdated(node) {
		if err := s.recordLost(ctx, v, node); err != nil {
			return err
		}
	}
	request.MustExist, request.Join = false, true
	return s.putReplicas(ctx, v, []string{node}, request)[node]
}

// LayAnew prepares a volume whose truth is in Ceph. Any two hosts will do, and what old replicas
// contain is not needed. An earlier holder that lives gives up its device first, whether its clients were
// fenced or not: it keeps its peer from being promoted, and its replica from being removed. LayAnew returns
// the copies that the kept one has to fill: see authority.Unfilled.
func (s *Steps) LayAnew(
	ctx context.Context, v *v1alpha1.CacheVolume, plan authority.Attachment, node string,
) (unfilled []string, err error) {
	open, err := s.abandonOn(ctx, v, node, s.formerHolders(ctx, v, node))
	if err != nil {
		return nil, err
	}
	if plan.Relay {
		return nil, s.relay(ctx, v, node, open)
	}
	stays := "" // a cordoned partner
	for _, partner := range v.Spec.Replicas {
		switch {
		case partner == node:
		case slices.Contains(open, partner):
			return nil, s.relayWithout(ctx, v, node, open, onHost(partner, fmt.Errorf("node %s still has the device of an earlier "+
				"attachment, and it is open (unmount it, or switch the node off): %w", partner, ErrUnavailable)))
		case s.Book.Ready(v.Spec.Group, partner):
		case len(plan.Renew) == 0 && s.onlyPartner(v, node, partner, open):
			stays = partner
		default:
			return nil, s.relayWithout(ctx, v, node, open,
				onHost(partner, fmt.Errorf("node %s was not ready when last asked: %w", partner, ErrUnavailable)))
		}
	}
	unfilled, err = s.layBeside(ctx, v, plan, node, stays)
	if err != nil {
		return nil, s.goOnWithout(ctx, v, node, open, err)
	}
	return unfilled, nil
}

// layBeside lays what is missing of both replicas where they are. The partner that stays, if any, gets no new
// replica. It returns what LayAnew returns.
func (s *Steps) layBeside(
	ctx context.Context, v *v1alpha1.CacheVolume, plan authority.Attachment, node, stays string,
) (unfilled []string, err error) {
	missing, failures, err := s.missing(ctx, v, plan.Renew)
	if err := firstOf(node, failures, err); err != nil {
		return nil, err
	}
	if slices.Contains(missing, stays) {
		return nil, onHost(stays, fmt.Errorf("node %s is cordoned and has no replica any more: %w", stays, ErrUnavailable))
	}
	renew := authority.Renewed(v, node, slices.Concat(plan.Renew, missing))
	unfilled = authority.Unfilled(v, authority.Attachment{Renew: renew}, node)
	if plan.Held { // what an interrupted call has created again is being filled by now
		filled := authority.Filled(s.Reports(ctx, v, []string{node})[node], unfilled)
		renew = slices.DeleteFunc(renew, func(renewed string) bool { return slices.Contains(filled, renewed) })
	}
	if err := s.renew(ctx, v, renew); err != nil {
		return nil, err
	}
	failures, err = s.layReplicas(ctx, v)
	if err := firstOf(node, failures, err); err != nil {
		return nil, err
	}
	return unfilled, nil
}

// onlyPartner reports whether a partner that gets no new replicas, because it is cordoned, has to do: it
// is well, and no other host of the group can stand in for it. It keeps the replica that it has.
func (s *Steps) onlyPartner(v *v1alpha1.CacheVolume, node, partner string, open []string) bool {
	if !s.Book.Well(v.Spec.Group, partner) {
		return false
	}
	_, err := s.Book.Partners(v, node, append([]string{partner}, open...)...)
	return errors.Is(err, placement.ErrNoFit)
}

// goOnWithout has another host of the group stand in for a partner that is down or cannot do it, if one is up.
// All other failures of the hosts end the attachment.
func (s *Steps) goOnWithout(ctx context.Context, v *v1alpha1.CacheVolume, node string, aside []string, err error) error {
	failure, ofHost := errors.AsType[*hostError](err)
	if !ofHost || failure.host == node || !unreachable(err) && !unable(err) {
		return err
	}
	if unable(err) {
		aside = append(slices.Clone(aside), failure.host)
	}
	return s.relayWithout(ctx, v, node, aside, failure)
}

// relayWithout lays both replicas again, on another pair of hosts than the one with the failure. The hosts
// aside are not asked.
func (s *Steps) relayWithout(ctx context.Context, v *v1alpha1.CacheVolume, node string, aside []string, failure *hostError) error {
	place, err := s.Book.Around(v, node, v.Spec.CacheBytes, aside...)
	s.Book.Observe(v)
	if err != nil {
		return fmt.Errorf("%w; and no other host can stand in: %s", failure, err.Error())
	}
	if place.Partner == failure.host {
		return failure // the poll has not noticed yet that it is down; the repeated call will
	}
	s.Log.WarnContext(ctx, "another host stands in for a partner", "volume", v.Name, "node", node, "partner", failure.host,
		"substitute", place.Partner, "error", failure)
	return s.relay(ctx, v, node, aside)
}

// relay lays both replicas again around a node, with the size that the cache is to have if there is room. A
// partner that turns out to be unable is put aside, and the next one is taken. The hosts aside get no replica,
// and keep the old one for now.
func (s *Steps) relay(ctx context.Context, v *v1alpha1.CacheVolume, node string, aside []string) error {
	err := s.relayOnce(ctx, v, node, aside)
	if unable(err) {
		return s.goOnWithout(ctx, v, node, aside, err)
	}
	return err
}

// relayOnce removes the old replicas first, so that none of them can ever be taken for a new one. The size
// changes on record in the same write as the places and the secret of the link. So a copy of the former size
// that a host has kept is on the group's list of what to remove, and nothing can be linked to it.
func (s *Steps) relayOnce(ctx context.Context, v *v1alpha1.CacheVolume, node string, aside []string) error {
	seat, err := s.seat(v, node, aside)
	if err != nil {
		// This is not "no room": for a node, CSI takes that to mean too many attached volumes.
		return fmt.Errorf("find a second host for the cache of volume %s beside node %s: %w: %s", v.Name, node, ErrUnavailable, err.Error())
	}
	// The seat is taken for the size that the replicas get. Until nothing is to change, the larger one counts.
	defer func() { s.Book.Observe(v) }()
	before, replicas := v.Spec.CacheBytes, []string{seat.Primary, seat.Partner}
	affected := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(v.Spec.Replicas), replicas...))))
	if err := s.recordAside(ctx, v, aside); err != nil {
		return err
	}
	affected = slices.DeleteFunc(affected, func(old string) bool { return slices.Contains(aside, old) })
	if err := s.dropReplicas(ctx, v, affected, replicas, unable); err != nil {
		return err
	}
	crashpoint.Reach("publish/old_replicas_dropped")
	if err := s.moveReplicas(ctx, v, replicas, seat.cacheBytes); err != nil {
		return err
	}
	crashpoint.Reach("publish/replicas_moved")
	s.showSize(v, seat)
	failures, err := s.layReplicas(ctx, v)
	if err := firstOf(node, failures, err); err != nil {
		return err
	}
	s.tellSize(v, before, seat)
	return nil
}

// moveReplicas records on which nodes replicas are about to be laid, and with which size. The link between
// them gets another secret, which who had an earlier replica does not know.
func (s *Steps) moveReplicas(ctx context.Context, v *v1alpha1.CacheVolume, replicas []string, cacheBytes int64) error {
	moved := v.DeepCopy()
	moved.Spec.Replicas = replicas
	if cacheBytes == v.Spec.WantedCacheBytes {
		moved.Spec.CacheBytes, moved.Spec.WantedCacheBytes = cacheBytes, 0
	}
	moved.Spec.LinkGeneration++
	if err := s.Cached.Update(ctx, moved); err != nil {
		return fmt.Errorf("record the new replicas of volume %s: %w", v.Name, err)
	}
	*v = *moved
	return nil
}

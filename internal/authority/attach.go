package authority

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Attachment is the plan for giving a volume to a node.
type Attachment struct {
	// Held means that the node has the volume already; the steps are repeated.
	Held bool
	// Epoch is the number of the attachment.
	Epoch int64
	// Relay means that the node has no replica, or that the cache is to get another size: drop both and
	// create them again around this node. Nothing is lost, because the truth is in Ceph.
	Relay bool
	// Renew lists replicas that are not current: drop them and create them again on the same hosts.
	// Nothing is lost, because the truth is in Ceph.
	Renew []string
	// Strangers lists replicas that are on another machine than the one on record, which had the node's name before or
	// got it since. What they hold is of nobody knows when. The record has to call them outdated before anything else
	// is done: then they are created again as those in Renew are.
	Strangers []string
	// Drained means that the node has the volume and writes through: do nothing, the truth stays in
	// Ceph.
	Drained bool
	// Uncached means that the node is outside the volume's group and gets the image without a cache. The
	// truth is in Ceph, and stays there. What all replicas hold is old from then on.
	Uncached bool
	// HostID is the machine that gets it without a cache. [Confirmed] finds it out.
	HostID string
	// TakeOver means that data may be dirty: go on without a partner that does not answer.
	TakeOver bool
	// FlushFirst lists the nodes with a current copy. One of them has to write back before the node
	// may have the volume. The other fields mean nothing then.
	FlushFirst []string
}

// Renewed returns the replicas to create again, of a volume whose truth is in Ceph: those that are given,
// because they are not current or missing. If the node's own is one of them, it is all. One that is
// empty would have to be filled before the node could use it, and all that are new are equal.
func Renewed(v *v1alpha1.CacheVolume, node string, replicas []string) []string {
	if slices.Contains(replicas, node) {
		return slices.Clone(v.Spec.Replicas)
	}
	return replicas
}

// Unfilled returns the replicas of a volume that lack data when its cache begins to write back. The plan's
// Renew lists all that were created again, those too that were found missing. The node's own copy, if it is
// kept, fills them. They are on record as outdated until they are filled. Otherwise the record would
// count two copies while there is one, and that one would be put on record as outdated if its disk failed.
// Replicas that are all new are equal.
func Unfilled(v *v1alpha1.CacheVolume, plan Attachment, node string) []string {
	if plan.Relay || slices.Contains(plan.Renew, node) {
		return nil // all are new
	}
	return slices.DeleteFunc(slices.Clone(plan.Renew), func(renewed string) bool { return !v.Spec.HasReplica(renewed) })
}

// Confirmed decides whether a planned attachment that has not begun yet may begin, now that the
// hosts have answered that have, or may have, a replica. None of them may have seen a later
// attachment than the record. In a take-over the node itself must still have its copy. The copy
// must not be created again: the empty one would be filled from an outdated copy. If another copy is
// current, that one is written back first. Errors wrap ErrRefused or ErrUnreachable.
func Confirmed(v *v1alpha1.CacheVolume, node string, plan Attachment, reports map[string]Report) (Attachment, error) {
	for other, r := range reports {
		if errors.Is(r.doubt, ErrRecordBehind) {
			return Attachment{}, fmt.Errorf("volume %s, node %s: %w", v.Name, other, r.doubt)
		}
	}
	own := reports[node]
	doubt := own.doubted()
	if plan.Uncached {
		return confirmedOutside(v, node, plan, reports)
	}
	if !plan.TakeOver {
		return plan.withStrangers(v, reports), nil
	}
	if doubt == nil {
		return plan, nil
	}
	if own.elsewhere() == nil {
		return Attachment{}, fmt.Errorf("volume %s: nothing is known about the copy on node %s: %w: %w",
			v.Name, node, doubt, ErrUnreachable)
	}
	others := slices.DeleteFunc(Current(v), func(other string) bool { return other == node })
	if len(others) == 0 {
		return Attachment{}, fmt.Errorf("volume %s: node %s has lost the only current copy: %w", v.Name, node, ErrRefused)
	}
	return Attachment{FlushFirst: others}, nil
}

// withStrangers completes a plan from Ceph by the replicas that turned out to be on other machines.
func (a Attachment) withStrangers(v *v1alpha1.CacheVolume, reports map[string]Report) Attachment {
	for _, node := range v.Spec.Replicas {
		if reports[node].stranger && !v.Status.IsOutdated(node) {
			a.Strangers = append(a.Strangers, node)
		}
	}
	a.Renew = append(slices.Clone(a.Renew), a.Strangers...)
	return a
}

// confirmedOutside decides whether a node outside the group may begin an attachment without a cache. The
// node's own host must answer, and must have nothing else of the volume: only that machine can prove
// later that its map is gone. A copy that the record counts, and that is dirty or in use, contradicts a
// record that says that Ceph has everything.
func confirmedOutside(
	v *v1alpha1.CacheVolume, node string, plan Attachment, reports map[string]Report,
) (Attachment, error) {
	own := reports[node]
	switch doubt := own.doubted(); {
	case doubt != nil:
		return Attachment{}, fmt.Errorf("volume %s: nothing is known about node %s, which is to have it without a cache: %w: %w",
			v.Name, node, doubt, ErrUnreachable)
	case own.status.HostID == "":
		return Attachment{}, fmt.Errorf("volume %s: escached on node %s does not say which machine it is: %w", v.Name, node, ErrUnreachable)
	case !own.status.Uncached && (own.status.State != escache.StateAbsent || HasDevice(own.status)):
		return Attachment{}, fmt.Errorf("volume %s: node %s is to have it without a cache, and has a replica of it or its "+
			"device (%s), which has to go first: %w", v.Name, node, own.status.State, ErrRefused)
	}
	for _, other := range Current(v) {
		r := reports[other]
		if !r.known {
			continue // that the truth is in Ceph was proven when it was recorded
		}
		if r.connected() || r.status.DirtyBytes != nil && *r.status.DirtyBytes > 0 {
			return Attachment{}, fmt.Errorf("volume %s: by the record everything is in Ceph, and node %s answers that its copy is %s (%s)"+
				": %w", v.Name, other, r.device(), dirty(r.status), ErrRefused)
		}
	}
	plan.HostID = own.status.HostID
	return plan, nil
}

// mayBeOutside reports whether a node outside the group may have the volume without a cache. A host
// that has, or may have, a replica cannot: there is one way to the image on each host.
func mayBeOutside(v *v1alpha1.CacheVolume, node string) bool {
	return v.Spec.UncachedFallback && !v.Spec.HasReplica(node) && v.Status.AttachedNode != node
}

// Attach decides whether the node may have the volume now, and how. The group lists the nodes of
// the volume's NodeGroup. Errors wrap ErrForeignNode or ErrRefused.
func Attach(v *v1alpha1.CacheVolume, group []string, node string) (Attachment, error) {
	s := &v.Status
	if s.UncachedAttached() && s.AttachedNode == node && !s.FlushAttached() {
		return Attachment{Held: true, Epoch: s.Epoch, Uncached: true}, nil // also if the node has come into the group since
	}
	outside := !slices.Contains(group, node)
	if outside && !mayBeOutside(v, node) {
		return Attachment{}, fmt.Errorf("volume %s lives in group %s (%s), node %s is %w; if the volume has come there since its pod got "+
			"the node, delete the pod, so that another one is scheduled",
			v.Name, v.Spec.Group, strings.Join(group, ", "), node, ErrForeignNode)
	}
	flushing := s.FlushAttached()
	if s.AttachedNode != "" && s.AttachedNode != node && !flushing {
		return Attachment{}, fmt.Errorf("volume %s is attached to node %s since epoch %d and has to be detached there first: %w",
			v.Name, s.AttachedNode, s.Epoch, ErrRefused)
	}
	// While csi-controller has the volume written back, only the node that does so may have it
	// right away: it has the device already. One that trims it has another device.
	if flushing && (s.AttachedNode != node || s.IsOutdated(node) || s.UncachedAttached()) {
		return Attachment{FlushFirst: []string{s.AttachedNode}}, nil
	}
	a := Attachment{Held: s.AttachedNode == node && !flushing, Epoch: s.Epoch}
	if !a.Held {
		a.Epoch++
	}
	if InCeph(v) {
		return a.fromCeph(v, node, outside), nil
	}
	return a.fromCaches(v, node)
}

// fromCeph completes the attachment of a volume whose data are all in Ceph. Outside says that the node
// is not in the volume's group.
func (a Attachment) fromCeph(v *v1alpha1.CacheVolume, node string, outside bool) Attachment {
	switch {
	case outside:
		a.Uncached = true
	case a.Held && len(Claims(v)) > 0:
		a.Drained = true
	default:
		a.Relay = !v.Spec.HasReplica(node) || v.Spec.WantedCacheBytes != 0
		for _, replica := range v.Spec.Replicas {
			if v.Status.IsOutdated(replica) {
				a.Renew = append(a.Renew, replica)
			}
		}
	}
	return a
}

// fromCaches completes the attachment of a volume with acknowledged writes that only its caches have.
func (a Attachment) fromCaches(v *v1alpha1.CacheVolume, node string) (Attachment, error) {
	a.TakeOver = true
	current := Current(v)
	switch {
	case slices.Contains(current, node):
		return a, nil
	case len(current) == 0:
		return Attachment{}, noneLeft(v)
	case a.Held:
		return Attachment{}, fmt.Errorf("volume %s is attached to node %s, which has no current copy of its dirty data; "+
			"detach it there, and attach it again: %w", v.Name, node, ErrRefused)
	default:
		return Attachment{FlushFirst: current}, nil
	}
}

// noneLeft says that no copy of a dirty volume is current.
func noneLeft(v *v1alpha1.CacheVolume) error {
	return fmt.Errorf("volume %s has no current replica left, only %s, which lack acknowledged writes; "+
		"discarding what is lost is a decision of its own: %w", v.Name, strings.Join(v.Spec.Replicas, " and "), ErrRefused)
}

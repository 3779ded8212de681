package attachment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Publish makes node the only one that may write. It claims the attachment by compare-and-swap,
// lays the replicas, and only then moves the authority to the cache. NodeStage refuses until that
// is on record. If the node has no current copy of dirty data, a node that has one writes it back
// first. The call succeeds only once the image's metadata tells of the attachment.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerpublishvolume
func (s *Attacher) Publish(ctx context.Context, v *v1alpha1.CacheVolume, node string) (map[string]string, error) {
	s.NameClaim(ctx, v)
	if _, err := s.Hosts.ReplicationAddress(ctx, node); err != nil {
		return nil, fmt.Errorf("find node %s: %w", node, err)
	}
	if v.Status.AttachedNode == "" || v.Status.FlushAttached() {
		if err := s.memoryFor(v, node); err != nil {
			return nil, err
		}
	}
	// The record may say that the node has the volume because it was set back to that.
	if err := s.NotBehind(ctx, v); err != nil {
		return nil, err
	}
	plan, err := s.plan(ctx, v, node)
	if err != nil {
		return nil, err
	}
	if plan.Held {
		if err := s.keep(ctx, v); err != nil {
			return nil, err
		}
	}
	if plan.Drained {
		return publishContext(v), nil
	}
	if plan.Uncached {
		return s.publishUncached(ctx, v, plan, node)
	}
	if err := s.claim(ctx, v, plan, node); err != nil {
		return nil, err
	}
	var unfilled []string
	if plan.TakeOver {
		err = s.TakeOver(ctx, v, node)
	} else {
		unfilled, err = s.LayAnew(ctx, v, plan, node)
	}
	if err != nil {
		return nil, err
	}
	crashpoint.Reach("publish/replicas_laid")
	if err := s.giveToCache(ctx, v, unfilled); err != nil {
		return nil, err
	}
	if err := s.MustNote(ctx, v); err != nil {
		return nil, err
	}
	return publishContext(v), nil
}

// memoryFor refuses a node that said at the last poll that it has no memory for the volume's cache:
// escached would refuse it too, after everything else was done. The text has no figures that change by
// themselves: Kubernetes makes an Event of each different one.
func (s *Attacher) memoryFor(v *v1alpha1.CacheVolume, node string) error {
	least := v.Spec.CacheBytes
	if authority.InCeph(v) {
		least = min(least, v.Spec.FinalCacheBytes())
	}
	if s.HasMemory(v, node, least) || v.Status.AttachedNode == node { // written back there: it has the device
		return nil
	}
	return fmt.Errorf("node %s has too little memory available to connect the cache of volume %s (%s). The data stay where they are, "+
		"and the attachment is tried again: stop something else on the node, start the pod on another node of group %s, or add memory; "+
		"see docs/sizing.md: %w", node, v.Name, v1alpha1.HumanBytes(v.Spec.CacheBytes), v.Spec.Group, volumes.ErrNoRoom)
}

// plan decides what has to be done for the node. Where another node has to write back first, it
// does so and decides again.
func (s *Attacher) plan(ctx context.Context, v *v1alpha1.CacheVolume, node string) (authority.Attachment, error) {
	group, err := s.Group(ctx, v.Spec.Group)
	if err != nil {
		return authority.Attachment{}, err
	}
	plan, err := s.attachment(ctx, v, group.Spec.Nodes, node)
	if err != nil || plan.Drained || len(plan.FlushFirst) == 0 {
		return plan, err
	}
	if err := s.WriteBack(ctx, v, plan.FlushFirst); err != nil {
		return plan, fmt.Errorf("node %s has no current copy of volume %s: %w", node, v.Name, err)
	}
	if plan, err = authority.Attach(v, group.Spec.Nodes, node); err == nil && plan.Uncached {
		return s.confirmed(ctx, v, node, plan)
	}
	return plan, err
}

// claim records that the node has the volume, unless it has it already.
func (s *Attacher) claim(ctx context.Context, v *v1alpha1.CacheVolume, plan authority.Attachment, node string) (err error) {
	if v.Status.ImageID == "" {
		if v.Status.ImageID, err = s.Images.Mark(ctx, volumes.ImageOf(v), v.Name); err != nil {
			return fmt.Errorf("read id and mark of image %s: %w", volumes.ImageOf(v), err)
		}
	}
	if plan.Held {
		return nil
	}
	if err := s.FenceAgain(ctx, v); err != nil {
		return err
	}
	if !v.Status.FlushAttached() {
		v.Status.FlushEpoch = 0 // else it says that the attachment begins on the device of a write-back
	}
	v.Status.AttachedNode, v.Status.Epoch, v.Status.ClientAddress = node, plan.Epoch, ""
	v.Status.WriteThrough, v.Status.Uncached, v.Status.UnstageEpoch = nil, nil, 0
	v.Status.Outdated = append(v.Status.Outdated, plan.Strangers...)
	meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks)
	if plan.Uncached {
		withoutCache(v, plan, node)
	}
	if err := s.UpdateStatus(ctx, v, "node "+node+" has it"); err != nil {
		return err
	}
	crashpoint.Reach("publish/attached")
	return nil
}

// giveToCache moves the authority to the cache, which may become dirty from then on. The unfilled
// copies do not count yet. A volume whose host, or second host, is being evacuated writes through from
// the beginning instead. So what the evacuation has said of that host stays true: Ceph has everything.
func (s *Attacher) giveToCache(ctx context.Context, v *v1alpha1.CacheVolume, unfilled []string) error {
	if !authority.InCeph(v) {
		return nil
	}
	drains, err := s.DrainsOf(ctx, v)
	if err != nil {
		return err
	}
	what := "its cache may be dirty"
	if v.Status.Outdated = unfilled; len(drains) == 0 {
		v.Status.Authority = v1alpha1.AuthorityCache
	} else {
		v.Status.WriteThrough = drains
		what = "it writes through from the beginning, for " + strings.Join(authority.Claims(v), " and ")
	}
	cachedAgain := meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionUncached)
	meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) // an earlier try may have set it
	if err := s.UpdateStatus(ctx, v, what); err != nil {
		return err
	}
	crashpoint.Reach("publish/authority_written")
	if cachedAgain {
		s.Events.Eventf(v, nil, corev1.EventTypeNormal, "AttachedCached", "Attach",
			"it is attached in its group %s again, to node %s, with a new cache", v.Spec.Group, v.Status.AttachedNode)
	}
	return nil
}

// attachment decides how the node may have the volume. If the record only says that the volume may
// be dirty, the hosts are asked first.
func (s *Attacher) attachment(ctx context.Context, v *v1alpha1.CacheVolume, group []string, node string) (authority.Attachment, error) {
	plan, err := authority.Attach(v, group, node)
	if err == nil && !plan.Held && len(plan.FlushFirst) == 0 {
		return s.confirmed(ctx, v, node, plan)
	}
	decided := err == nil && len(plan.FlushFirst) == 0
	if decided || authority.InCeph(v) || v.Status.AttachedNode != "" || errors.Is(err, authority.ErrForeignNode) {
		return plan, err
	}
	reports, failure := s.Settle(ctx, v)
	if failure != nil {
		return plan, failure
	}
	plan, err = authority.Attach(v, group, node)
	if err == nil && plan.Uncached {
		return s.confirmed(ctx, v, node, plan)
	}
	if err != nil {
		if stake := authority.AtStake(v, reports, s.LastSeen(ctx, v.Spec.Group)); stake != "" {
			return plan, fmt.Errorf("%w; %s", err, stake)
		}
	}
	return plan, err
}

// confirmed asks the hosts before the attachment begins: whether they have seen a later one than the
// record, and whether the node still has the copy that it is to take over.
func (s *Attacher) confirmed(
	ctx context.Context, v *v1alpha1.CacheVolume, node string, plan authority.Attachment,
) (authority.Attachment, error) {
	ask := append(s.WellReplicas(v), node)
	slices.Sort(ask)
	reports := s.Reports(ctx, v, slices.Compact(ask))
	// In the group LayAnew has leftovers go, or TakeOver what keeps the node out, but for what the node itself has: once it
	// is attached there, its host keeps it.
	if plan.Uncached || slices.Contains(plan.Renew, node) {
		reports = s.WithoutLeftovers(ctx, v, reports)
	}
	plan, err := authority.Confirmed(v, node, plan, reports)
	if err != nil {
		if stake := authority.AtStake(v, reports, s.LastSeen(ctx, v.Spec.Group)); stake != "" {
			return plan, fmt.Errorf("%w; %s", err, stake)
		}
	}
	return plan, err
}

// publishContext returns what NodeStage gets: the epoch, by which csi-node recognises a late call.
// csi-node reads everything else from the record.
func publishContext(v *v1alpha1.CacheVolume) map[string]string {
	return map[string]string{v1alpha1.PublishContextEpoch: strconv.FormatInt(v.Status.Epoch, 10)}
}

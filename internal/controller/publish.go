package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// publish makes node the only one that may write: it takes the attachment by compare-and-swap, has the replicas laid where
// they are not, and only then lets the truth move to the cache. NodeStage refuses until that is on record. Where the node has no
// current copy of what is dirty, one that has writes it back first.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerpublishvolume
func (s *service) publish(ctx context.Context, id, node string) (map[string]string, error) {
	v, err := s.volume(ctx, id)
	if err != nil {
		return nil, err
	}
	if v.Status.Phase != v1alpha1.VolumeReady {
		return nil, fmt.Errorf("volume %s is not made yet: %w", id, ErrRefused)
	}
	if _, err := s.Hosts.ReplicationAddress(ctx, node); err != nil {
		return nil, fmt.Errorf("find node %s: %w", node, err)
	}
	group, err := s.group(ctx, v.Spec.Group)
	if err != nil {
		return nil, err
	}
	plan, err := s.attachment(ctx, v, group.Spec.Nodes, node)
	if err != nil {
		return nil, err
	}
	if plan.Drained {
		return publishContext(v), nil
	}
	if len(plan.FlushFirst) > 0 {
		if err := s.writeBack(ctx, v, plan.FlushFirst); err != nil {
			return nil, fmt.Errorf("node %s has no current copy of volume %s: %w", node, id, err)
		}
		if plan, err = authority.Attach(v, group.Spec.Nodes, node); err != nil {
			return nil, err
		}
	}
	if v.Status.ImageID == "" {
		if v.Status.ImageID, err = s.Images.ID(ctx, imageOf(v)); err != nil {
			return nil, fmt.Errorf("read the id of image %s: %w", imageOf(v), err)
		}
	}
	if !plan.Held {
		if err := s.fenceAgain(ctx, v); err != nil {
			return nil, err
		}
		v.Status.AttachedNode, v.Status.Epoch, v.Status.ClientAddress = node, plan.Epoch, ""
		v.Status.WriteThrough = nil
		if err := s.updateStatus(ctx, v, "node "+node+" has it"); err != nil {
			return nil, err
		}
		crashpoint.Reach("publish/attached")
	}
	if plan.TakeOver {
		err = s.takeOver(ctx, v, node)
	} else {
		err = s.layAnew(ctx, v, plan, node)
	}
	if err != nil {
		return nil, err
	}
	crashpoint.Reach("publish/replicas_laid")
	if authority.InCeph(v) {
		v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCache, nil
		if err := s.updateStatus(ctx, v, "its cache may be dirty"); err != nil {
			return nil, err
		}
		crashpoint.Reach("publish/authority_written")
	}
	return publishContext(v), nil
}

// attachment decides; a volume that is only thought to be dirty is asked about first.
func (s *service) attachment(ctx context.Context, v *v1alpha1.CacheVolume, group []string, node string) (authority.Attachment, error) {
	plan, err := authority.Attach(v, group, node)
	decided := err == nil && len(plan.FlushFirst) == 0
	if decided || authority.InCeph(v) || v.Status.AttachedNode != "" || errors.Is(err, authority.ErrForeignNode) {
		return plan, err
	}
	reports, settleErr := s.settle(ctx, v)
	if settleErr != nil {
		return plan, settleErr
	}
	plan, err = authority.Attach(v, group, node)
	if err != nil {
		if stake := authority.AtStake(v, reports, s.lastSeen(ctx, v.Spec.Group)); stake != "" {
			return plan, fmt.Errorf("%w; %s", err, stake)
		}
	}
	return plan, err
}

// takeOver is for volumes that may be dirty: the node's own replica has to be there, its partner's is made if it can be.
func (s *service) takeOver(ctx context.Context, v *v1alpha1.CacheVolume, node string) error {
	failures, err := s.layReplicas(ctx, v)
	if err != nil {
		return err
	}
	for partner, failure := range failures {
		if partner == node || !unreachable(failure) {
			return failure
		}
		s.Log.WarnContext(ctx, "attaching without the partner", "volume", v.Name, "node", node, "partner", partner, "error", failure)
	}
	return nil
}

// layAnew is for volumes whose truth is in Ceph: any two hosts will do, and what old replicas hold is of no use.
func (s *service) layAnew(ctx context.Context, v *v1alpha1.CacheVolume, plan authority.Attachment, node string) error {
	if plan.Relay {
		return s.relay(ctx, v, node)
	}
	for _, partner := range v.Spec.Replicas {
		if partner != node && !s.Book.Ready(v.Spec.Group, partner) {
			return s.relayWithout(ctx, v, node, fmt.Errorf("node %s was not ready when last asked: %w", partner, ErrUnavailable))
		}
	}
	if len(plan.Renew) > 0 {
		if err := s.dropReplicas(ctx, v, plan.Renew, v.Spec.Replicas); err != nil {
			return err
		}
	}
	failures, err := s.layReplicas(ctx, v)
	if err != nil {
		return err
	}
	if failure, failed := failures[node]; failed {
		return failure
	}
	for _, failure := range failures {
		if !unreachable(failure) {
			return failure
		}
		// The partner is down: the third host of the group can stand in, if it is up.
		return s.relayWithout(ctx, v, node, failure)
	}
	return nil
}

func (s *service) relayWithout(ctx context.Context, v *v1alpha1.CacheVolume, node string, failure error) error {
	before := slices.Clone(v.Spec.Replicas)
	place, err := s.Book.Around(v, node)
	s.Book.Observe(v)
	if err != nil {
		return fmt.Errorf("%w; and no other host can stand in: %s", failure, err.Error())
	}
	if slices.Contains(before, place.Partner) {
		return failure // the poll has not noticed yet that it is down; the repeated call will
	}
	return s.relay(ctx, v, node)
}

// relay lays both replicas anew around a node. Old ones go first, so that none of them can ever be taken for a new one.
func (s *service) relay(ctx context.Context, v *v1alpha1.CacheVolume, node string) (err error) {
	place, err := s.Book.Around(v, node)
	if err != nil {
		// Not "no room": of a node, CSI takes that for too many volumes attached to it.
		return fmt.Errorf("find a second host for the cache of volume %s beside node %s: %w: %s", v.Name, node, ErrUnavailable, err.Error())
	}
	defer func() {
		if err != nil {
			s.Book.Observe(v)
		}
	}()
	replicas := []string{place.Primary, place.Partner}
	affected := slices.Compact(slices.Sorted(slices.Values(append(slices.Clone(v.Spec.Replicas), replicas...))))
	if err := s.dropReplicas(ctx, v, affected, replicas); err != nil {
		return err
	}
	crashpoint.Reach("publish/old_replicas_dropped")
	moved := v.DeepCopy()
	moved.Spec.Replicas = replicas
	if err := s.Cached.Update(ctx, moved); err != nil {
		return fmt.Errorf("record the new replicas of volume %s: %w", v.Name, err)
	}
	*v = *moved
	crashpoint.Reach("publish/replicas_moved")
	failures, err := s.layReplicas(ctx, v)
	if err != nil {
		return err
	}
	for _, failure := range failures {
		return failure
	}
	return nil
}

// publishContext is what csi-node needs to connect without asking anybody but the record itself.
func publishContext(v *v1alpha1.CacheVolume) map[string]string {
	o := v.Spec.CacheOptions
	return map[string]string{
		v1alpha1.PublishContextEpoch:         strconv.FormatInt(v.Status.Epoch, 10),
		v1alpha1.PublishContextPool:          v.Spec.Pool,
		v1alpha1.PublishContextImage:         v.Spec.Image,
		v1alpha1.PublishContextImageID:       v.Status.ImageID,
		v1alpha1.PublishContextCacheMode:     string(v.Spec.CacheMode),
		v1alpha1.PublishContextHighWatermark: strconv.Itoa(int(o.HighWatermark)),
		v1alpha1.PublishContextLowWatermark:  strconv.Itoa(int(o.LowWatermark)),
		v1alpha1.PublishContextMaxDirtyAge:   strconv.Itoa(int(o.MaxDirtyAgeSeconds)),
	}
}

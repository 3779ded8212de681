package csi

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// publish makes node the only one that may write: it takes the attachment by compare-and-swap, has the replicas laid where
// they are not, and only then lets the truth move to the cache. NodeStage refuses until that is on record. Where the node has no
// current copy of what is dirty, one that has writes it back first.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#controllerpublishvolume
func (s *service) publish(ctx context.Context, id, node string) (map[string]string, error) {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return nil, err
	}
	if v.Status.Phase != v1alpha1.VolumeReady {
		return nil, fmt.Errorf("volume %s is not made yet: %w", id, volumes.ErrRefused)
	}
	if _, err := s.Hosts.ReplicationAddress(ctx, node); err != nil {
		return nil, fmt.Errorf("find node %s: %w", node, err)
	}
	group, err := s.Group(ctx, v.Spec.Group)
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
		if err := s.WriteBack(ctx, v, plan.FlushFirst); err != nil {
			return nil, fmt.Errorf("node %s has no current copy of volume %s: %w", node, id, err)
		}
		if plan, err = authority.Attach(v, group.Spec.Nodes, node); err != nil {
			return nil, err
		}
	}
	if v.Status.ImageID == "" {
		if v.Status.ImageID, err = s.Images.ID(ctx, volumes.ImageOf(v)); err != nil {
			return nil, fmt.Errorf("read the id of image %s: %w", volumes.ImageOf(v), err)
		}
	}
	if !plan.Held {
		if err := s.FenceAgain(ctx, v); err != nil {
			return nil, err
		}
		v.Status.AttachedNode, v.Status.Epoch, v.Status.ClientAddress = node, plan.Epoch, ""
		v.Status.WriteThrough = nil
		if err := s.UpdateStatus(ctx, v, "node "+node+" has it"); err != nil {
			return nil, err
		}
		crashpoint.Reach("publish/attached")
	}
	if plan.TakeOver {
		err = s.TakeOver(ctx, v, node)
	} else {
		err = s.LayAnew(ctx, v, plan, node)
	}
	if err != nil {
		return nil, err
	}
	crashpoint.Reach("publish/replicas_laid")
	if authority.InCeph(v) {
		v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCache, nil
		if err := s.UpdateStatus(ctx, v, "its cache may be dirty"); err != nil {
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
	reports, settleErr := s.Settle(ctx, v)
	if settleErr != nil {
		return plan, settleErr
	}
	plan, err = authority.Attach(v, group, node)
	if err != nil {
		if stake := authority.AtStake(v, reports, s.LastSeen(ctx, v.Spec.Group)); stake != "" {
			return plan, fmt.Errorf("%w; %s", err, stake)
		}
	}
	return plan, err
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

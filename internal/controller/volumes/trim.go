package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/fstype"
	"github.com/escache/escache-csi/internal/pause"
)

// Trimming is the operation in which csi-controller has a volume's free space given back to Ceph. It takes seconds,
// and then another one may have its turn.
const Trimming = "trim"

// trimPause is longer than the pause between two looks of a call that waits for its turn.
const trimPause = 250 * time.Millisecond

// Filesystem is what a host must know to mount a volume's filesystem as a pod's host does.
type Filesystem struct {
	Type         string
	MountOptions []string
}

// Trimmed is how far a trim is.
type Trimmed struct {
	// Node does it.
	Node string
	// Bytes is what the filesystem has discarded in this bite, and Next where the next one begins.
	Bytes, Next int64
	Done        bool
}

// Trim gives a volume's free space back to Ceph, in bites: each goes on where the one before ended, and takes at most
// longest, apart from connecting, and from the part of it that the host has begun.
//
// Where the volume is attached with a device that takes discards, its host does it. A volume that no node has is
// written back first, and then a host of its group without a replica gets it without a cache, as a pod outside the
// group would. That attachment stays until everything is trimmed, until somebody needs the volume, or EndTrim. An error
// that wraps ErrBusy is followed by another try.
func (l *Locked) Trim(ctx context.Context, id string, start int64, longest time.Duration) (Trimmed, error) {
	// A call that waits for its turn takes it in this time. Otherwise a pod might wait for all bites.
	if err := pause.For(ctx, trimPause); err != nil {
		return Trimmed{}, err
	}
	return under(l, id, Trimming, func() (Trimmed, error) {
		trimmed, err := l.steps.trim(ctx, id, start, longest)
		return trimmed, l.steps.ReportBehind(ctx, id, err)
	})
}

// EndTrim takes a volume from the host that trims it. It does nothing if none does.
func (l *Locked) EndTrim(ctx context.Context, id string) error {
	_, err := under(l, id, Trimming, func() (struct{}, error) {
		v, err := l.steps.Volume(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return struct{}{}, nil
		}
		if err == nil && v.Status.TrimAttached() {
			err = l.steps.resumeFlush(ctx, v, flushLongest)
		}
		return struct{}{}, err
	})
	return err
}

func (s *Steps) trim(ctx context.Context, id string, start int64, longest time.Duration) (Trimmed, error) {
	v, err := s.Volume(ctx, id)
	if err != nil {
		return Trimmed{}, err
	}
	if err := errors.Join(Usable(v), usable(v)); err != nil {
		return Trimmed{}, err
	}
	filesystem, err := s.filesystem(ctx, v)
	if err != nil {
		return Trimmed{}, err
	}
	switch {
	case v.Status.TrimAttached():
		return s.trimOutside(ctx, v, filesystem, start, longest)
	case v.Status.AttachedNode == "" || v.Status.FlushAttached():
		if err := s.writeBackDetached(ctx, v, longest); err != nil {
			return Trimmed{}, err
		}
		if err := s.attachToTrim(ctx, v); err != nil {
			return Trimmed{}, err
		}
		return s.trimOutside(ctx, v, filesystem, start, longest)
	case !v.Status.UncachedAttached() && v.Spec.Engine() != v1alpha1.CacheEngineLog:
		return Trimmed{}, fmt.Errorf("volume %s is attached to node %s with the cache engine %s, whose device takes no discards. "+
			"Stop its pods, and trim it when it is detached: %w", v.Name, v.Status.AttachedNode, v.Spec.Engine(), ErrRefused)
	}
	return s.trimOn(ctx, v, v.Status.AttachedNode, filesystem, start, longest)
}

// filesystem returns what the volume's PersistentVolume says of its filesystem. It refuses a volume without one.
func (s *Steps) filesystem(ctx context.Context, v *v1alpha1.CacheVolume) (Filesystem, error) {
	pv := s.persistentVolume(ctx, v)
	if pv == nil {
		return Filesystem{}, fmt.Errorf("volume %s: there is no PersistentVolume %s, so nobody knows which filesystem it has: %w",
			v.Name, v.Name, ErrRefused)
	}
	if mode := pv.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		return Filesystem{}, fmt.Errorf("volume %s has volumeMode Block: only its user knows what is free in it. With the cache engine "+
			"log, run blkdiscard or fstrim in its pod: %w", v.Name, ErrRefused)
	}
	if v.Status.ImageID == "" {
		return Filesystem{}, fmt.Errorf("volume %s was never attached, so it has no filesystem and there is nothing to trim: %w",
			v.Name, ErrRefused)
	}
	filesystem := Filesystem{Type: pv.Spec.CSI.FSType, MountOptions: pv.Spec.MountOptions}
	if filesystem.Type == "" {
		filesystem.Type = fstype.Ext4
	}
	if err := fstype.Known(filesystem.Type); err != nil {
		return Filesystem{}, fmt.Errorf("volume %s: %w: %w", v.Name, err, ErrRefused)
	}
	return filesystem, nil
}

// attachToTrim gives a volume that no node has to a host of its group, without a cache. What the replicas hold is old
// from then on, by the same write: the host is about to write to the image.
func (s *Steps) attachToTrim(ctx context.Context, v *v1alpha1.CacheVolume) error {
	group, err := s.Group(ctx, v.Spec.Group)
	if err != nil {
		return err
	}
	candidates := slices.DeleteFunc(slices.Clone(group.Spec.Nodes), func(node string) bool {
		return v.Spec.HasReplica(node) || !s.Book.Ready(v.Spec.Group, node)
	})
	reports := s.Reports(ctx, v, append(s.WellReplicas(v), candidates...))
	// It gets an epoch of its own. Afterwards nothing could tell that the record was set back.
	if err := s.newest(ctx, v, reports); err != nil {
		return err
	}
	reports = s.WithoutLeftovers(ctx, v, reports)
	node, plan, err := trimmer(v, group.Spec.Nodes, candidates, reports)
	if err != nil {
		return err
	}
	if err := s.FenceAgain(ctx, v); err != nil {
		return err
	}
	st := &v.Status
	st.AttachedNode, st.Epoch, st.FlushEpoch, st.ClientAddress, st.WriteThrough = node, plan.Epoch, plan.Epoch, "", nil
	st.Uncached = &v1alpha1.UncachedAttachment{Epoch: plan.Epoch, HostID: plan.HostID}
	st.Authority, st.Outdated = v1alpha1.AuthorityCeph, slices.Clone(v.Spec.Replicas)
	if err := s.UpdateStatus(ctx, v, "node "+node+" has it to trim it"); err != nil {
		return err
	}
	crashpoint.Reach("trim/attached")
	if !st.TrimAttached() {
		return errors.Join(fmt.Errorf("the API server has dropped status.uncached of volume %s: its CRD of CacheVolumes is older than "+
			"csi-controller; apply the chart's CRDs: %w", v.Name, ErrRefused), s.resumeFlush(ctx, v, flushLongest))
	}
	return nil
}

// trimmer chooses the host that trims a volume. It is pure.
func trimmer(
	v *v1alpha1.CacheVolume, group, candidates []string, reports map[string]authority.Report,
) (string, authority.Attachment, error) {
	var reasons []string
	for _, node := range candidates {
		plan, err := authority.AttachToTrim(v, group, node)
		if err == nil {
			plan, err = authority.Confirmed(v, node, plan, reports)
		}
		if err == nil {
			return node, plan, nil
		}
		reasons = append(reasons, err.Error())
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "none of its other hosts is ready and not cordoned")
	}
	return "", authority.Attachment{}, fmt.Errorf("volume %s: no host of group %s can trim it; it must be one that has no replica of it, "+
		"which are on %s: %s: %w", v.Name, v.Spec.Group, strings.Join(v.Spec.Replicas, " and "), strings.Join(reasons, "; "), ErrRefused)
}

// trimOutside takes a bite on the host that has the volume to trim it, and takes the volume from it when that is done
// or will not do.
func (s *Steps) trimOutside(
	ctx context.Context, v *v1alpha1.CacheVolume, filesystem Filesystem, start int64, longest time.Duration,
) (Trimmed, error) {
	// The image tells of the attachment before the host connects it, as it must of each one without a cache.
	if err := s.Connectable(ctx, v); err != nil {
		return Trimmed{}, err
	}
	crashpoint.Reach("trim/noted")
	node := v.Status.AttachedNode
	trimmed := Trimmed{Node: node, Next: start}
	err := s.Hosts.DevConnect(ctx, node, v.Status.HostID(node), cachevolume.ConnectRequest(v))
	if err == nil {
		crashpoint.Reach("trim/connected")
		trimmed, err = s.trimOn(ctx, v, node, filesystem, start, longest)
	} else {
		err = fmt.Errorf("connect volume %s on node %s to trim it: %w", v.Name, node, err)
	}
	if err == nil && !trimmed.Done {
		return trimmed, nil
	}
	crashpoint.Reach("trim/trimmed")
	if ended := s.resumeFlush(ctx, v, longest); ended != nil {
		// It is not done before it is unmapped: the next try goes on from here, and ends it.
		trimmed.Done = false
		return trimmed, errors.Join(err, ended)
	}
	return trimmed, err
}

// trimOn takes a bite on a host that has the volume.
func (s *Steps) trimOn(
	ctx context.Context, v *v1alpha1.CacheVolume, node string, filesystem Filesystem, start int64, longest time.Duration,
) (Trimmed, error) {
	none := Trimmed{Node: node, Next: start}
	answer, err := s.Hosts.Trim(ctx, cachevolume.On(v, node), filesystem, start, longest)
	if problem, is := errors.AsType[*escache.Problem](err); is {
		switch problem.Code { //nolint:exhaustive // the rest says what it is
		case escache.CodeUnknownPath:
			return none, fmt.Errorf("escached on node %s is older than csi-controller and cannot trim: upgrade it: %w", node, ErrRefused)
		case escache.CodeInvalidRequest:
			return none, fmt.Errorf("trim volume %s on node %s: %w: %w", v.Name, node, err, ErrRefused)
		}
	}
	if err != nil {
		return none, fmt.Errorf("trim volume %s on node %s: %w", v.Name, node, err)
	}
	return Trimmed{Node: node, Bytes: answer.TrimmedBytes, Next: answer.NextByte, Done: answer.Done}, nil
}

// stopTrimmed unmaps the image on the host that has the volume to trim it. One that was restarted has nothing of it.
func (s *Steps) stopTrimmed(ctx context.Context, v *v1alpha1.CacheVolume) error {
	node := v.Status.AttachedNode
	err := s.Hosts.Stop(ctx, cachevolume.On(v, node))
	if problem, is := errors.AsType[*escache.Problem](err); is &&
		(problem.Code == escache.CodeNotFound || problem.Code == escache.CodeNotConnected) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("stop volume %s on node %s, which trims it: %w", v.Name, node, err)
	}
	crashpoint.Reach("trim/stopped")
	return nil
}

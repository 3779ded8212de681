package node

import (
	"context"
	"fmt"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// forgottenInterval is the pause between two looks for forgotten volumes.
	forgottenInterval = 15 * time.Second
	// forgottenParallel is how many of them are unstaged at once.
	forgottenParallel = 8
	// stagingName is the last part of the path at which a kubelet has a filesystem staged. At any other path a pod has it.
	stagingName = "globalmount"
)

// UnstageForgotten unstages volumes that are to leave this node and that no pod uses, until the context ends. A kubelet finds the
// volumes of its pods again when it is restarted. Of one that it was unstaging, or that no pod has got yet, it knows nothing any more:
// it reports it as not in use, and never unstages it.
func (s *Service) UnstageForgotten(ctx context.Context) error {
	for pause.For(ctx, forgottenInterval) == nil {
		if err := s.unstageForgotten(ctx); err != nil {
			s.Logger.WarnContext(ctx, "cannot look for volumes that the kubelet has forgotten", "error", err)
		}
	}
	return nil
}

func (s *Service) unstageForgotten(ctx context.Context) error {
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	var all errgroup.Group
	all.SetLimit(forgottenParallel)
	for volume, status := range s.Seen() {
		if _, unused := s.stagedAt(table, status); !unused {
			continue
		}
		all.Go(func() error {
			err := s.exclusively(volume, "unstaging what the kubelet has forgotten", func() error {
				return s.unstageIfAsked(ctx, volume, status)
			})
			if err != nil {
				s.Logger.InfoContext(ctx, "volume is not unstaged yet", "volume", volume, "error", err)
			}
			return nil
		})
	}
	return all.Wait()
}

// unstageIfAsked unstages a volume if its record asks for that, or says that the volume was taken from this node by force, and
// still no pod uses it. If the next pod of a volume that was taken comes to this node again, the kubelet waits for its
// attachment, and does not unstage it. That attachment waits for the old device to go, which the mount keeps open.
func (s *Service) unstageIfAsked(ctx context.Context, volume string, status escache.VolumeStatus) error {
	v, err := s.Kube.Volume(ctx, volume)
	if err != nil {
		return err
	}
	asked, fenced := authority.MustUnstage(v, s.Node), authority.IsFenced(v, status.ClientAddress)
	switch {
	case !asked && !fenced:
		return nil
	case !asked && v.Status.AttachedNode == s.Node:
		return s.unmountFenced(ctx, v)
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	at, unused := s.stagedAt(table, status)
	if !unused {
		return fmt.Errorf("%w: it is in use", ErrRefused)
	}
	s.Logger.WarnContext(ctx, "unstaging a volume that is to leave this node, and that no pod uses", "volume", volume,
		"epoch", v.Status.Epoch, "path", at, "fenced", fenced)
	return s.unstage(ctx, volume, at)
}

// unmountFenced unmounts a volume that this node has again, on a device whose Ceph client is fenced. Then escached can remove
// the device, and the kubelet's next call makes it anew.
func (s *Service) unmountFenced(ctx context.Context, v *v1alpha1.CacheVolume) error {
	// The caller's status may be older than a call that has made the device anew.
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return fmt.Errorf("status of volume %s: %w", v.Name, err)
	}
	if !authority.IsFenced(v, status.ClientAddress) || status.IOSuspended {
		return nil
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	at, unused := s.stagedAt(table, *status)
	if !unused || at == "" {
		return nil
	}
	s.Logger.WarnContext(ctx, "unmounting a volume that no pod uses: its Ceph client was fenced", "volume", v.Name,
		"client", status.ClientAddress, "path", at)
	return s.unmountAll(ctx, v.Name, at, table)
}

// stagedAt returns where a connected volume is staged, which may be nowhere, and whether no pod uses it.
func (s *Service) stagedAt(table []mounts.Entry, status escache.VolumeStatus) (at string, unused bool) {
	if deviceOf(&status) == "" {
		return "", false
	}
	number, err := s.Devices.Number(status.Device)
	if err != nil {
		return "", false
	}
	for _, entry := range mounts.Of(table, number) {
		if entry.Node || path.Base(entry.Path) != stagingName || at != "" && at != entry.Path {
			return "", false
		}
		at = entry.Path
	}
	return at, true
}

package node

import (
	"context"
	"fmt"
	"path"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
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

// UnstageForgotten unstages volumes that Kubernetes wants detached and that no pod uses, until the context ends. A kubelet finds the
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

// unstageIfAsked unstages a volume if its record asks for that, and still no pod uses it.
func (s *Service) unstageIfAsked(ctx context.Context, volume string, status escache.VolumeStatus) error {
	v, err := s.Kube.Volume(ctx, volume)
	if err != nil || !authority.MustUnstage(v, s.Node) {
		return err
	}
	table, err := s.Mounter.Table()
	if err != nil {
		return err
	}
	at, unused := s.stagedAt(table, status)
	if !unused {
		return fmt.Errorf("%w: it is in use", ErrRefused)
	}
	s.Logger.WarnContext(ctx, "unstaging a volume that Kubernetes wants detached, and that no pod uses", "volume", volume,
		"epoch", v.Status.Epoch, "path", at)
	return s.unstage(ctx, volume, at)
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

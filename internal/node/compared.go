package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/internal/traces"
)

const (
	// answerTime is how long csi-controller may take to compare a record with the image's metadata. Then
	// the call ends, and the kubelet repeats it.
	answerTime = 20 * time.Second
	// The record is read again after firstWait, and after twice as long each time, up to longestWait.
	firstWait   = 25 * time.Millisecond
	longestWait = time.Second
)

// reader reads the record again. It fails if this node may not connect the volume by it any more.
type reader func(context.Context) (*v1alpha1.CacheVolume, error)

// compared returns the record once csi-controller has compared it with the image's metadata. A record that
// a restore of etcd has set back gives this node the volume again, which others have had since. This host's
// disks do not tell, and a host cannot read the metadata. So it is asked before the device is connected: DRBD
// asks the arbiter only where a promotion is made without the peer.
//
// A device that is here already was connected by this attachment, and goes on: nothing is asked, so neither
// Ceph nor csi-controller has to answer.
func (s *Service) compared(ctx context.Context, v *v1alpha1.CacheVolume, again reader) (*v1alpha1.CacheVolume, error) {
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return nil, fmt.Errorf("status of volume %s: %w", v.Name, err)
	}
	if health.IsConnected(*status) && status.Epoch == v.Status.Epoch && !authority.IsFenced(v, status.ClientAddress) {
		return v, nil
	}
	return s.ask(ctx, v, again)
}

// ask puts a question on record that nobody has asked before, and waits for its answer.
func (s *Service) ask(ctx context.Context, v *v1alpha1.CacheVolume, again reader) (_ *v1alpha1.CacheVolume, err error) {
	ctx, step := traces.Begin(ctx, "have the record compared")
	defer step.Done(&err)
	question := newUUID()
	if err := s.putQuestion(ctx, v, question, again); err != nil {
		return nil, err
	}
	waiting, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		if pause.For(waiting, wait) != nil {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return nil, fmt.Errorf("%w: nobody has compared the record of volume %s with its image's metadata in Ceph for %s, and without "+
				"that it is not connected; check that csi-controller runs, is of this version and reaches Ceph",
				ErrUnavailable, v.Name, answerTime)
		}
		now, err := again(ctx)
		if err != nil {
			return nil, err
		}
		if err := authority.Compared(now, question); !errors.Is(err, authority.ErrUnanswered) {
			return now, err
		}
	}
}

func (s *Service) putQuestion(ctx context.Context, v *v1alpha1.CacheVolume, question string, again reader) error {
	var err error
	for range maxTries {
		var asked *v1alpha1.CacheVolume
		asked, err = s.Kube.PatchStatus(ctx, v, map[string]any{
			"comparison": map[string]any{"question": question, "answered": nil, "behind": nil},
		})
		if err == nil && asked.Status.Comparison == nil {
			return fmt.Errorf("%w: the API server has dropped status.comparison of volume %s: its CRD of CacheVolumes is older than "+
				"csi-node; apply the chart's CRDs", ErrRefused, v.Name)
		}
		if !errors.Is(err, kube.ErrConflict) {
			return err
		}
		now, readErr := again(ctx)
		if readErr != nil {
			return readErr
		}
		v = now
	}
	return err
}

package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/kube"
)

// recordClientAddress records the Ceph client of a device that was just connected, before anything
// uses the device. Connecting can take long. Meanwhile the controller may have detached the volume
// from this node: it saw no device here and no client to fence. One of the two writes the record
// first. Either this function finds that the attachment is over, or the controller's write fails
// and it reads the record again. It returns the CacheVolume as written; with an error, as last
// read.
//
// The same write keeps the record's authority as it was returned, until the new device is seen: who
// has read the record before, and has asked about an earlier device, cannot write it any more.
func (s *Service) recordClientAddress(ctx context.Context, v *v1alpha1.CacheVolume, address string) (*v1alpha1.CacheVolume, error) {
	if authority.IsFenced(v, address) {
		return v, fmt.Errorf("%w: escached has connected volume %s with Ceph client %s, which is fenced; reboot this node",
			ErrRefused, v.Name, address)
	}
	if address == "" || address == v.Status.ClientAddress {
		return v, nil // an implementation of escached that does not report it, or it is on record already
	}
	var err error
	for range maxTries {
		var changed *v1alpha1.CacheVolume
		changed, err = s.Kube.PatchStatus(ctx, v, map[string]any{"clientAddress": address})
		if err == nil {
			return changed, nil
		}
		if !errors.Is(err, kube.ErrConflict) {
			return v, err
		}
		now, readErr := s.attached(ctx, v.Name, v.Status.Epoch)
		if readErr != nil {
			return v, readErr
		}
		v = now
	}
	return v, err
}

// mayWrite returns an error if the device writes back although the record says that the truth is in
// Ceph. The device was connected by a record that said otherwise, and that has changed since.
func (s *Service) mayWrite(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if !authority.InCeph(v) {
		return nil
	}
	status, err := s.Cache.VolumeStatus(ctx, cachevolume.Ref(v))
	if err != nil {
		return fmt.Errorf("mode of volume %s: %w", v.Name, err)
	}
	if status.Mode != escache.ModeWritethrough {
		return fmt.Errorf("%w: volume %s is connected to write back, and the record says by now that the truth is in Ceph; "+
			"the repeated call connects it to write through", ErrRefused, v.Name)
	}
	return nil
}

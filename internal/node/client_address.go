package node

import (
	"context"
	"errors"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
)

// recordClientAddress puts the Ceph client of a device that was just connected on record, before anybody uses the device. Connecting can
// take long, and meanwhile the volume may have been taken from this node, by a controller that saw no device here and no client to
// fence. One of the two writes the record first: either this finds that the attachment is over, or the controller finds that the
// record has changed and looks again. It returns the volume as it is on record now; with an error, as it was read last.
func (s *Service) recordClientAddress(ctx context.Context, v *v1alpha1.CacheVolume, address string) (*v1alpha1.CacheVolume, error) {
	if address == "" || address == v.Status.ClientAddress {
		return v, nil // an escached of another make that cannot tell, or a device that was there and on record already
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

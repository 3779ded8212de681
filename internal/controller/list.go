package controller

import (
	"context"
	"errors"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// pageSize bounds what is read from the API server at once.
const pageSize = 500

// ListVolumes returns the volumes that are made. It asks the API server itself, for whoever made a volume just now looks for
// it here; the page tokens are the API server's own, which expire after minutes.
func (s *Service) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if r.GetMaxEntries() < 0 {
		return nil, fmt.Errorf("max_entries %d: %w", r.GetMaxEntries(), ErrInvalid)
	}
	out := &csi.ListVolumesResponse{NextToken: r.GetStartingToken()}
	for {
		page := &v1alpha1.CacheVolumeList{}
		limit := pageSize
		if most := int(r.GetMaxEntries()); most > 0 {
			limit = min(limit, most-len(out.GetEntries()))
		}
		err := s.service.Live.List(ctx, page, client.Limit(int64(limit)), client.Continue(out.GetNextToken()))
		if out.GetNextToken() != "" && (apierrors.IsResourceExpired(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)) {
			return nil, fmt.Errorf("starting_token %q: %w: %w", r.GetStartingToken(), ErrPageToken, err)
		}
		if err != nil {
			return nil, fmt.Errorf("list volumes: %w", err)
		}
		for i := range page.Items {
			if v := &page.Items[i]; v.Status.Phase == v1alpha1.VolumeReady && v.DeletionTimestamp.IsZero() {
				out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{
					Volume: volumeOf(v), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: publishedOn(v)},
				})
			}
		}
		out.NextToken = page.Continue
		if full := r.GetMaxEntries() > 0 && len(out.GetEntries()) == int(r.GetMaxEntries()); full || page.Continue == "" {
			return out, nil
		}
	}
}

// ControllerGetVolume returns one volume.
func (s *Service) ControllerGetVolume(ctx context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if err := required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := s.service.volume(ctx, r.GetVolumeId())
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: volumeOf(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: publishedOn(v)},
	}, nil
}

// ValidateVolumeCapabilities says whether the volume can be used that way; a message says why not.
func (s *Service) ValidateVolumeCapabilities(
	ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, fmt.Errorf("volume capabilities are missing: %w", ErrInvalid)
	}
	if _, err := s.service.volume(ctx, r.GetVolumeId()); err != nil {
		return nil, err
	}
	err := checkCapabilities(r.GetVolumeCapabilities())
	if err == nil && len(r.GetParameters()) > 0 {
		_, err = parseParameters(r.GetParameters())
	}
	switch {
	case errors.Is(err, ErrInvalid), errors.Is(err, ErrUnsupported):
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	case err != nil:
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
		},
	}, nil
}

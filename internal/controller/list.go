package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// tokenPrefix makes a page token recognisable; the rest is the id of the last volume on the page before. So pages stay right
// while volumes come and go.
const tokenPrefix = "after:"

// ListVolumes returns the volumes that are made, by id.
func (s *Service) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	if r.GetMaxEntries() < 0 {
		return nil, fmt.Errorf("max_entries %d: %w", r.GetMaxEntries(), ErrInvalid)
	}
	after, isToken := strings.CutPrefix(r.GetStartingToken(), tokenPrefix)
	if r.GetStartingToken() != "" && (!isToken || after == "") {
		return nil, fmt.Errorf("starting_token %q: %w", r.GetStartingToken(), ErrPageToken)
	}
	all := &v1alpha1.CacheVolumeList{}
	if err := s.service.Cached.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	page := slices.DeleteFunc(all.Items, func(v v1alpha1.CacheVolume) bool {
		return v.Status.Phase != v1alpha1.VolumeReady || !v.DeletionTimestamp.IsZero() || v.Name <= after
	})
	slices.SortFunc(page, func(a, b v1alpha1.CacheVolume) int { return strings.Compare(a.Name, b.Name) })
	out := &csi.ListVolumesResponse{}
	if n := int(r.GetMaxEntries()); n > 0 && n < len(page) {
		page = page[:n]
		out.NextToken = tokenPrefix + page[n-1].Name
	}
	for i := range page {
		out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{
			Volume: volumeOf(&page[i]), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: publishedOn(&page[i])},
		})
	}
	return out, nil
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

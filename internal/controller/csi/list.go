package csi

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/csi/snapshots"
	"github.com/escache/escache-csi/internal/controller/readonly"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// pageSize bounds how many objects are read from the API server at once.
const pageSize = 500

// inReadOnly begins a page token that is in the list of read-only volumes. No token of the API server has a
// blank.
const inReadOnly = "read-only "

// ListVolumes returns the volumes that are complete: those with a cache, and then the read-only ones. It
// asks the API server itself, because a client that has just made a volume looks for it here. The page
// tokens are the API server's own, which expire after minutes.
func (s *Service) ListVolumes(ctx context.Context, r *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	out := &csi.ListVolumesResponse{}
	token, last := strings.CutPrefix(r.GetStartingToken(), inReadOnly)
	most := r.GetMaxEntries()
	if !last {
		page := &v1alpha1.CacheVolumeList{}
		next, err := s.service.list(ctx, most, token, page, func() int {
			for i := range page.Items {
				if v := &page.Items[i]; v.Status.Phase == v1alpha1.VolumeReady && v.DeletionTimestamp.IsZero() {
					out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{
						Volume: volumeOf(v), Status: &csi.ListVolumesResponse_VolumeStatus{PublishedNodeIds: publishedOn(v)},
					})
				}
			}
			return len(out.GetEntries())
		})
		if err != nil || next != "" {
			out.NextToken = next
			return out, err
		}
		token = ""
	}
	if most > 0 && len(out.GetEntries()) == int(most) {
		more, err := readonly.List(ctx, s.service.Live, client.Limit(1))
		if err == nil && len(more.Items) > 0 {
			out.NextToken = inReadOnly
		}
		return out, err
	}
	entries, next, err := s.service.listReadOnly(ctx, max(most-int32(len(out.GetEntries())), 0), token)
	out.Entries = append(out.Entries, entries...)
	if next != "" {
		out.NextToken = inReadOnly + next
	}
	return out, err
}

// ListSnapshots returns the snapshots that are complete: all, those of a volume, or the one with an
// id.
func (s *Service) ListSnapshots(ctx context.Context, r *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	out := &csi.ListSnapshotsResponse{}
	add := func(snapshot *v1alpha1.CacheSnapshot) {
		of := r.GetSourceVolumeId() == "" || r.GetSourceVolumeId() == snapshot.Spec.Volume
		if of && snapshot.Status.Taken != nil && snapshot.DeletionTimestamp.IsZero() {
			out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshots.ToCSI(snapshot)})
		}
	}
	if id := r.GetSnapshotId(); id != "" {
		snapshot, err := s.service.snapshots.Get(ctx, id)
		if err == nil {
			add(snapshot)
		}
		if errors.Is(err, volumes.ErrNotFound) {
			err = nil
		}
		return out, err
	}
	page := &v1alpha1.CacheSnapshotList{}
	next, err := s.service.list(ctx, r.GetMaxEntries(), r.GetStartingToken(), page, func() int {
		for i := range page.Items {
			add(&page.Items[i])
		}
		return len(out.GetEntries())
	})
	out.NextToken = next
	return out, err
}

// GetSnapshot returns one snapshot.
func (s *Service) GetSnapshot(ctx context.Context, r *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	if err := requests.Required("snapshot id", r.GetSnapshotId()); err != nil {
		return nil, err
	}
	snapshot, err := s.service.snapshots.Get(ctx, r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	if snapshot.Status.Taken == nil {
		return nil, fmt.Errorf("snapshot %s is not taken yet: %w", snapshot.Name, volumes.ErrNotFound)
	}
	return &csi.GetSnapshotResponse{Snapshot: snapshots.ToCSI(snapshot)}, nil
}

// list reads objects page by page, from the token on, until it has as many entries as asked for; 0
// asks for all. take adds the entries of one page and returns how many there are.
func (s *service) list(ctx context.Context, most int32, token string, page client.ObjectList, take func() int) (next string, err error) {
	if most < 0 {
		return "", fmt.Errorf("max_entries %d: %w", most, volumes.ErrInvalid)
	}
	limit := pageSize
	if most > 0 {
		limit = min(limit, int(most))
	}
	for next = token; ; {
		err := s.Live.List(ctx, page, client.Limit(int64(limit)), client.Continue(next))
		if next != "" && (apierrors.IsResourceExpired(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err)) {
			return "", fmt.Errorf("starting_token %q: %w: %w", token, volumes.ErrPageToken, err)
		}
		if err != nil {
			return "", fmt.Errorf("read the list: %w", err)
		}
		has := take()
		next = page.GetContinue()
		if next == "" || most > 0 && has == int(most) {
			return next, nil
		}
		if most > 0 {
			limit = min(pageSize, int(most)-has)
		}
	}
}

// ControllerGetVolume returns one volume.
func (s *Service) ControllerGetVolume(ctx context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	if err := requests.Required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	v, err := s.service.Volume(ctx, r.GetVolumeId())
	if errors.Is(err, volumes.ErrNotFound) {
		if v, missing := s.service.readOnly.Get(ctx, r.GetVolumeId()); missing == nil {
			return &csi.ControllerGetVolumeResponse{
				Volume: readOnlyVolumeOf(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: readonly.NodesOf(v)},
			}, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{
		Volume: volumeOf(v), Status: &csi.ControllerGetVolumeResponse_VolumeStatus{PublishedNodeIds: publishedOn(v)},
	}, nil
}

// ValidateVolumeCapabilities reports whether the volume can be used in that way, with a message if
// it cannot.
func (s *Service) ValidateVolumeCapabilities(
	ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := requests.Required("volume id", r.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, fmt.Errorf("volume capabilities are missing: %w", volumes.ErrInvalid)
	}
	err := s.service.validate(ctx, r)
	switch {
	case errors.Is(err, volumes.ErrInvalid), errors.Is(err, volumes.ErrUnsupported):
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	case err != nil:
		return nil, err
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
			VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
			MutableParameters: r.GetMutableParameters(),
		},
	}, nil
}

// validate returns ErrInvalid or ErrUnsupported if the volume cannot be used in that way.
func (s *service) validate(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) error {
	v, err := s.Volume(ctx, r.GetVolumeId())
	if errors.Is(err, volumes.ErrNotFound) && s.notReadOnly(ctx, r.GetVolumeId()) != nil {
		return requests.CheckReadOnly(r.GetVolumeCapabilities())
	}
	if err != nil {
		return err
	}
	if err := requests.CheckCapabilities(r.GetVolumeCapabilities()); err != nil {
		return err
	}
	parameters := changeableOf(v)
	if len(r.GetParameters()) > 0 {
		if parameters, err = requests.ParseParameters(r.GetParameters()); err != nil {
			return err
		}
	}
	_, err = requests.ChangeParameters(parameters, r.GetMutableParameters())
	return err
}

package host

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/trim"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TrimDevice has the filesystem on a volume's device discard its free space. The caller has locked the volume.
func (h *Host) TrimDevice(ctx context.Context, req escache.TrimRequest, device string) (escache.TrimResponse, error) {
	result, err := h.Trimmer.Trim(ctx, volume.NameOf(req.VolumeRef), trim.Request{
		Device: device, Type: req.FSType, Options: req.MountOptions, Start: req.StartByte,
		Longest: time.Duration(req.TimeoutSeconds) * time.Second,
	})
	if errors.Is(err, trim.ErrRefused) {
		return escache.TrimResponse{}, problem.On(req.VolumeRef, escache.CodeInvalidRequest, "%v", err)
	}
	return escache.TrimResponse{Done: result.Done, NextByte: result.Next, TrimmedBytes: result.Trimmed}, err
}

package requests

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// The parameter of a VolumeGroupSnapshotClass: how long the I/O of the volumes may rest, in whole
// seconds. csi-snapshotter gives a call 60 s, and some of them are for writing back before.
const (
	maxSeconds      = "maxSeconds"
	shortestSeconds = 5
	longestSeconds  = 40
)

// Group is a CreateVolumeGroupSnapshotRequest after it was parsed and checked.
type Group struct {
	ID      string
	Volumes []string // sorted: in this order they are locked
	Longest time.Duration
}

// ParseGroup parses and checks a CreateVolumeGroupSnapshotRequest.
func ParseGroup(r *csi.CreateVolumeGroupSnapshotRequest) (Group, error) {
	out := Group{ID: VolumeID(r.GetName()), Volumes: slices.Sorted(slices.Values(r.GetSourceVolumeIds()))}
	if err := Required("name", r.GetName()); err != nil {
		return out, err
	}
	switch n := len(out.Volumes); {
	case n == 0:
		return out, fmt.Errorf("source volume ids are missing: %w", volumes.ErrInvalid)
	case n > v1alpha1.MaxSnapshotGroup:
		return out, fmt.Errorf("%d volumes, and a group snapshot has %d at most: %w", n, v1alpha1.MaxSnapshotGroup, volumes.ErrInvalid)
	}
	for i, volume := range out.Volumes {
		if err := Required("source volume id", volume); err != nil {
			return out, err
		}
		if i > 0 && volume == out.Volumes[i-1] {
			return out, fmt.Errorf("volume %s is named twice: %w", volume, volumes.ErrInvalid)
		}
	}
	var err error
	out.Longest, err = parseHold(r.GetParameters())
	return out, err
}

// parseHold returns how long I/O may rest.
func parseHold(parameters map[string]string) (time.Duration, error) {
	longest := volumes.HoldTime
	for key, value := range parameters {
		if key != maxSeconds {
			return 0, fmt.Errorf("parameter %q: a VolumeGroupSnapshotClass of this driver has only %s: %w",
				key, maxSeconds, volumes.ErrInvalid)
		}
		seconds, err := strconv.Atoi(value)
		if err != nil || seconds < shortestSeconds || seconds > longestSeconds {
			return 0, fmt.Errorf("parameter %s: %q is not a whole number of seconds from %d to %d: %w",
				maxSeconds, value, shortestSeconds, longestSeconds, volumes.ErrInvalid)
		}
		longest = time.Duration(seconds) * time.Second
	}
	return longest, nil
}

package csi

import (
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/storageclass"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/fstype"
)

// createRequest is a CreateVolumeRequest after it was parsed and checked.
type createRequest struct {
	storageclass.Parameters

	ID   string
	Size sizeRange
	// Snapshot is the id of the snapshot that the volume is made from, and Volume that of the volume
	// that it is a clone of. Both are empty for an empty volume.
	Snapshot string
	Volume   string
	// ReadOnly: many nodes are to read the volume, and nobody is to write to it.
	ReadOnly bool
	// Groups are tried in this order, one set after the other. Nil allows every group.
	Groups [][]string
}

// sizeRange holds the sizes that a volume may have, in bytes. A new volume gets Want.
type sizeRange struct {
	Want    int64
	Minimum int64
	Maximum int64 // 0: none
}

func (r sizeRange) allows(n int64) bool { return n >= r.Minimum && (r.Maximum == 0 || n <= r.Maximum) }

func parseCreate(r *csi.CreateVolumeRequest) (createRequest, error) {
	if err := required("name", r.GetName()); err != nil {
		return createRequest{}, err
	}
	readOnly := wantsReadOnly(r.GetVolumeCapabilities())
	if err := checkCreate(r, readOnly); err != nil {
		return createRequest{}, err
	}
	snapshot, volume, err := parseSource(r.GetVolumeContentSource())
	if err != nil {
		return createRequest{}, err
	}
	size, err := parseSize(r.GetCapacityRange())
	if err != nil {
		return createRequest{}, err
	}
	// An image that is made from another one has its filesystem already.
	if r.GetVolumeContentSource() == nil {
		if err := checkRoomForFilesystem(r.GetVolumeCapabilities(), size.Want); err != nil {
			return createRequest{}, err
		}
	}
	parameters, err := parseParameters(r.GetParameters())
	if err != nil {
		return createRequest{}, err
	}
	if parameters, err = changeParameters(parameters, r.GetMutableParameters()); err != nil {
		return createRequest{}, err
	}
	groups, err := allowedGroups(r.GetAccessibilityRequirements(), parameters.NodeGroups)
	if err != nil {
		return createRequest{}, err
	}
	return createRequest{
		ID: VolumeID(r.GetName()), Size: size, Parameters: parameters, Groups: groups,
		Snapshot: snapshot, Volume: volume, ReadOnly: readOnly,
	}, nil
}

// parseSource returns the id of the snapshot or of the volume that a volume is made from; "" for an
// empty volume.
func parseSource(r *csi.VolumeContentSource) (snapshot, volume string, err error) {
	switch {
	case r == nil:
		return "", "", nil
	case r.GetSnapshot() != nil:
		snapshot = r.GetSnapshot().GetSnapshotId()
		return snapshot, "", required("id of the source snapshot", snapshot)
	case r.GetVolume() != nil:
		volume = r.GetVolume().GetVolumeId()
		return "", volume, required("id of the source volume", volume)
	}
	return "", "", fmt.Errorf("a volume content source that is neither a snapshot nor a volume is %w", volumes.ErrUnsupported)
}

// snapshotRequest is a CreateSnapshotRequest after it was parsed and checked.
type snapshotRequest struct {
	ID     string
	Volume string
}

func parseSnapshot(r *csi.CreateSnapshotRequest) (snapshotRequest, error) {
	if err := errors.Join(required("name", r.GetName()), required("source volume id", r.GetSourceVolumeId())); err != nil {
		return snapshotRequest{}, err
	}
	for key := range r.GetParameters() {
		return snapshotRequest{}, fmt.Errorf("parameter %q: a VolumeSnapshotClass of this driver has none: %w", key, volumes.ErrInvalid)
	}
	return snapshotRequest{ID: VolumeID(r.GetName()), Volume: r.GetSourceVolumeId()}, nil
}

func parseParameters(in map[string]string) (storageclass.Parameters, error) {
	p, err := storageclass.Parse(in)
	if err != nil {
		return p, fmt.Errorf("%w: %w", volumes.ErrInvalid, err)
	}
	return p, nil
}

// changeParameters puts the parameters of a VolumeAttributesClass in the place of those that a volume
// has, or of those of its StorageClass.
func changeParameters(p storageclass.Parameters, attributes map[string]string) (storageclass.Parameters, error) {
	p, err := storageclass.Change(p, attributes)
	if err != nil {
		return p, fmt.Errorf("%w: %w", volumes.ErrInvalid, err)
	}
	return p, nil
}

func parseSize(r *csi.CapacityRange) (sizeRange, error) {
	minimum, maximum := r.GetRequiredBytes(), r.GetLimitBytes()
	if minimum < 0 || maximum < 0 || (maximum != 0 && maximum < minimum) {
		return sizeRange{}, fmt.Errorf("required %d and limit %d bytes: %w", minimum, maximum, volumes.ErrInvalid)
	}
	want := storageclass.RoundUp(max(minimum, storageclass.MinVolumeBytes), storageclass.VolumeGrain)
	if minimum == 0 {
		want = storageclass.DefaultVolumeBytes
		if maximum != 0 {
			want = min(want, maximum/storageclass.VolumeGrain*storageclass.VolumeGrain)
		}
	}
	if want < storageclass.MinVolumeBytes || want > storageclass.MaxVolumeBytes || (maximum != 0 && want > maximum) {
		return sizeRange{}, fmt.Errorf("volumes are whole MiB up to 1 PiB, and none is from %d to %d bytes: %w",
			minimum, maximum, volumes.ErrOutOfRange)
	}
	return sizeRange{Want: want, Minimum: minimum, Maximum: maximum}, nil
}

// checkRoomForFilesystem refuses a volume that is too small for the filesystem that is wanted on it.
func checkRoomForFilesystem(all []*csi.VolumeCapability, sizeBytes int64) error {
	for _, c := range all {
		if c.GetMount().GetFsType() == fstype.XFS && sizeBytes < fstype.MinXFSBytes {
			return fmt.Errorf("xfs needs a volume of 300 MiB or more: make the claim larger, or use ext4: %w", volumes.ErrOutOfRange)
		}
	}
	return nil
}

// allowedGroups turns a topology requirement and the StorageClass's own list into sets of groups to
// try in turn.
func allowedGroups(r *csi.TopologyRequirement, listed []string) ([][]string, error) {
	listing := func(group string) bool { return len(listed) == 0 || slices.Contains(listed, group) }
	requisite := groupsOf(r.GetRequisite())
	preferred := groupsOf(r.GetPreferred())
	if len(requisite) == 0 && len(preferred) == 0 {
		if r != nil && len(r.GetRequisite())+len(r.GetPreferred()) > 0 {
			return nil, fmt.Errorf("no topology term has the key %s: %w", v1alpha1.TopologyKey, volumes.ErrNoRoom)
		}
		if len(listed) == 0 {
			return nil, nil
		}
		return [][]string{listed}, nil
	}
	var sets [][]string
	for _, group := range preferred {
		if listing(group) {
			sets = append(sets, []string{group})
		}
	}
	rest := slices.DeleteFunc(slices.Clone(requisite), func(g string) bool { return !listing(g) || slices.Contains(preferred, g) })
	if len(rest) > 0 {
		sets = append(sets, rest)
	}
	if len(sets) == 0 {
		return nil, fmt.Errorf("the topology wants groups %v and the StorageClass allows %v: %w", requisite, listed, volumes.ErrNoRoom)
	}
	return sets, nil
}

func groupsOf(terms []*csi.Topology) []string {
	var groups []string
	for _, t := range terms {
		if g := t.GetSegments()[v1alpha1.TopologyKey]; g != "" && !slices.Contains(groups, g) {
			groups = append(groups, g)
		}
	}
	return groups
}

func checkPublish(r *csi.ControllerPublishVolumeRequest) error {
	if err := errors.Join(required("volume id", r.GetVolumeId()), required("node id", r.GetNodeId())); err != nil {
		return err
	}
	if r.GetVolumeCapability() == nil {
		return fmt.Errorf("volume capability is missing: %w", volumes.ErrInvalid)
	}
	if wantsReadOnly([]*csi.VolumeCapability{r.GetVolumeCapability()}) {
		return checkReadOnly([]*csi.VolumeCapability{r.GetVolumeCapability()})
	}
	if r.GetReadonly() {
		return fmt.Errorf("publishing read-only is %w; mount the volume read-only instead", volumes.ErrUnsupported)
	}
	return checkCapabilities([]*csi.VolumeCapability{r.GetVolumeCapability()})
}

func required(what, value string) error {
	if value == "" {
		return fmt.Errorf("%s is missing: %w", what, volumes.ErrInvalid)
	}
	if len(value) > 253 {
		return fmt.Errorf("%s is longer than 253 bytes: %w", what, volumes.ErrInvalid)
	}
	return nil
}

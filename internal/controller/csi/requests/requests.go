package requests

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

// Create is a CreateVolumeRequest after it was parsed and checked.
type Create struct {
	storageclass.Parameters

	ID   string
	Size SizeRange
	// Snapshot is the id of the snapshot that the volume is made from, and Volume that of the volume
	// that it is a clone of. Both are empty for an empty volume.
	Snapshot string
	Volume   string
	// ReadOnly: many nodes are to read the volume, and nobody is to write to it.
	ReadOnly bool
	// Groups are tried in this order, one set after the other. Nil allows every group.
	Groups [][]string
}

// SizeRange holds the sizes that a volume may have, in bytes. A new volume gets Want.
type SizeRange struct {
	Want    int64
	Minimum int64
	Maximum int64 // 0: none
}

// Allows reports whether a volume may have so many bytes.
func (r SizeRange) Allows(n int64) bool { return n >= r.Minimum && (r.Maximum == 0 || n <= r.Maximum) }

// ParseCreate parses and checks a CreateVolumeRequest.
func ParseCreate(r *csi.CreateVolumeRequest) (Create, error) {
	if err := Required("name", r.GetName()); err != nil {
		return Create{}, err
	}
	readOnly := WantsReadOnly(r.GetVolumeCapabilities())
	if err := checkCreate(r, readOnly); err != nil {
		return Create{}, err
	}
	snapshot, volume, err := parseSource(r.GetVolumeContentSource())
	if err != nil {
		return Create{}, err
	}
	size, err := ParseSize(r.GetCapacityRange())
	if err != nil {
		return Create{}, err
	}
	// An image that is made from another one has its filesystem already.
	if r.GetVolumeContentSource() == nil {
		if err := checkRoomForFilesystem(r.GetVolumeCapabilities(), size.Want); err != nil {
			return Create{}, err
		}
	}
	parameters, err := ParseParameters(r.GetParameters())
	if err != nil {
		return Create{}, err
	}
	if parameters, err = ChangeParameters(parameters, r.GetMutableParameters()); err != nil {
		return Create{}, err
	}
	groups, err := allowedGroups(r.GetAccessibilityRequirements(), parameters.NodeGroups)
	if err != nil {
		return Create{}, err
	}
	return Create{
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
		return snapshot, "", Required("id of the source snapshot", snapshot)
	case r.GetVolume() != nil:
		volume = r.GetVolume().GetVolumeId()
		return "", volume, Required("id of the source volume", volume)
	}
	return "", "", fmt.Errorf("a volume content source that is neither a snapshot nor a volume is %w", volumes.ErrUnsupported)
}

// Snapshot is a CreateSnapshotRequest after it was parsed and checked.
type Snapshot struct {
	ID     string
	Volume string
}

// ParseSnapshot parses and checks a CreateSnapshotRequest.
func ParseSnapshot(r *csi.CreateSnapshotRequest) (Snapshot, error) {
	if err := errors.Join(Required("name", r.GetName()), Required("source volume id", r.GetSourceVolumeId())); err != nil {
		return Snapshot{}, err
	}
	for key := range r.GetParameters() {
		return Snapshot{}, fmt.Errorf("parameter %q: a VolumeSnapshotClass of this driver has none: %w", key, volumes.ErrInvalid)
	}
	return Snapshot{ID: VolumeID(r.GetName()), Volume: r.GetSourceVolumeId()}, nil
}

// ParseParameters parses the parameters of a StorageClass.
func ParseParameters(in map[string]string) (storageclass.Parameters, error) {
	p, err := storageclass.Parse(in)
	if err != nil {
		return p, fmt.Errorf("%w: %w", volumes.ErrInvalid, err)
	}
	return p, nil
}

// ChangeParameters puts the parameters of a VolumeAttributesClass in the place of those that a volume
// has, or of those of its StorageClass.
func ChangeParameters(p storageclass.Parameters, attributes map[string]string) (storageclass.Parameters, error) {
	p, err := storageclass.Change(p, attributes)
	if err != nil {
		return p, fmt.Errorf("%w: %w", volumes.ErrInvalid, err)
	}
	return p, nil
}

// ParseSize returns the sizes that a request allows.
func ParseSize(r *csi.CapacityRange) (SizeRange, error) {
	minimum, maximum := r.GetRequiredBytes(), r.GetLimitBytes()
	if minimum < 0 || maximum < 0 || (maximum != 0 && maximum < minimum) {
		return SizeRange{}, fmt.Errorf("required %d and limit %d bytes: %w", minimum, maximum, volumes.ErrInvalid)
	}
	want := storageclass.RoundUp(max(minimum, storageclass.MinVolumeBytes), storageclass.VolumeGrain)
	if minimum == 0 {
		want = storageclass.DefaultVolumeBytes
		if maximum != 0 {
			want = min(want, maximum/storageclass.VolumeGrain*storageclass.VolumeGrain)
		}
	}
	if want < storageclass.MinVolumeBytes || want > storageclass.MaxVolumeBytes || (maximum != 0 && want > maximum) {
		return SizeRange{}, fmt.Errorf("volumes are whole MiB up to 1 PiB, and none is from %d to %d bytes: %w",
			minimum, maximum, volumes.ErrOutOfRange)
	}
	return SizeRange{Want: want, Minimum: minimum, Maximum: maximum}, nil
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

// CheckPublish checks who is to get a volume, and how it is to be used there.
func CheckPublish(r *csi.ControllerPublishVolumeRequest) error {
	if err := errors.Join(Required("volume id", r.GetVolumeId()), Required("node id", r.GetNodeId())); err != nil {
		return err
	}
	if r.GetVolumeCapability() == nil {
		return fmt.Errorf("volume capability is missing: %w", volumes.ErrInvalid)
	}
	if WantsReadOnly([]*csi.VolumeCapability{r.GetVolumeCapability()}) {
		return CheckReadOnly([]*csi.VolumeCapability{r.GetVolumeCapability()})
	}
	if r.GetReadonly() {
		return fmt.Errorf("publishing read-only is %w; mount the volume read-only instead", volumes.ErrUnsupported)
	}
	return CheckCapabilities([]*csi.VolumeCapability{r.GetVolumeCapability()})
}

// CheckModify checks a request that changes a volume.
func CheckModify(r *csi.ControllerModifyVolumeRequest) error {
	if err := Required("volume id", r.GetVolumeId()); err != nil {
		return err
	}
	if len(r.GetMutableParameters()) == 0 {
		return fmt.Errorf("mutable parameters are missing: the VolumeAttributesClass has none: %w", volumes.ErrInvalid)
	}
	return nil
}

// Required refuses a request that lacks a name or an id, or has one that is too long.
func Required(what, value string) error {
	if value == "" {
		return fmt.Errorf("%s is missing: %w", what, volumes.ErrInvalid)
	}
	if len(value) > 253 {
		return fmt.Errorf("%s is longer than 253 bytes: %w", what, volumes.ErrInvalid)
	}
	return nil
}

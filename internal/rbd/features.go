package rbd

import (
	"fmt"
	"slices"
	"strings"

	librbd "github.com/ceph/go-ceph/rbd"
)

// Features is a set of RBD image features.
type Features uint64

// The features that a caller can choose. Linux can map images with all of them since 5.3; the
// nodes' kernels are newer.
const (
	Layering      = Features(librbd.FeatureLayering)
	ExclusiveLock = Features(librbd.FeatureExclusiveLock)
	ObjectMap     = Features(librbd.FeatureObjectMap)
	FastDiff      = Features(librbd.FeatureFastDiff)
	DeepFlatten   = Features(librbd.FeatureDeepFlatten)

	// DefaultFeatures leave out object-map: the kernel cannot grow a mapped image that has it.
	// Object-map would make diffs and the deletion of a sparse image faster.
	DefaultFeatures = Layering | ExclusiveLock | DeepFlatten

	allFeatures = DefaultFeatures | ObjectMap | FastDiff
)

type feature struct {
	bit   Features
	name  string
	needs Features
}

var chosen = []feature{
	{Layering, "layering", 0},
	{ExclusiveLock, "exclusive-lock", 0},
	{ObjectMap, "object-map", ExclusiveLock},
	{FastDiff, "fast-diff", ObjectMap},
	{DeepFlatten, "deep-flatten", 0},
}

// refused are the names that Ceph knows and a caller cannot choose.
var refused = map[string]string{
	"journaling":  "the kernel cannot map an image with it",
	"striping":    "it follows from the stripe unit and count",
	"data-pool":   "it follows from the data pool",
	"operations":  "Ceph sets it by itself",
	"migrating":   "Ceph sets it by itself",
	"non-primary": "Ceph sets it by itself",
	"dirty-cache": "Ceph sets it by itself",
}

// FeatureNames returns the names that ParseFeatures accepts.
func FeatureNames() []string { return allFeatures.Names() }

// ParseFeatures turns names into Features that the nodes' kernels can map. No names give
// DefaultFeatures. The error is ErrInvalid and says why a name or a combination is refused.
func ParseFeatures(names []string) (Features, error) {
	if len(names) == 0 {
		return DefaultFeatures, nil
	}
	var set Features
	for _, name := range names {
		i := slices.IndexFunc(chosen, func(f feature) bool { return f.name == name })
		if i < 0 {
			why, known := refused[name]
			if !known {
				why = "there is no such feature"
			}
			return 0, fmt.Errorf("image feature %q: %s; allowed are %s: %w", name, why, strings.Join(FeatureNames(), ", "), ErrInvalid)
		}
		set |= chosen[i].bit
	}
	for _, f := range chosen {
		if set&f.bit != 0 && set&f.needs != f.needs {
			return 0, fmt.Errorf("image feature %s needs %s: %w", f.name, strings.Join(f.needs.Names(), ", "), ErrInvalid)
		}
	}
	if set&ExclusiveLock == 0 {
		return 0, fmt.Errorf("image features without exclusive-lock, which keeps a second host from writing: %w", ErrInvalid)
	}
	return set, nil
}

// Names returns Ceph's names of the features, including those that Ceph sets by itself.
func (f Features) Names() []string {
	set := librbd.FeatureSet(f)
	names := set.Names()
	slices.SortFunc(names, func(a, b string) int { return int(bit(a) - bit(b)) })
	return names
}

func (f Features) String() string { return strings.Join(f.Names(), ",") }

func bit(name string) int64 { return int64(librbd.FeatureSetFromNames([]string{name})) }

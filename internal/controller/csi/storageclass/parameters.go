// Package storageclass parses the parameters of a StorageClass, once, into a struct that is valid
// by construction. docs/parameters.md describes each parameter for users; a test compares the two.
package storageclass

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// ErrInvalid means that a parameter is unknown or malformed, or contradicts another.
var ErrInvalid = errors.New("invalid StorageClass parameter")

// Parameters holds the parameters of a StorageClass. Only Parse and WithDefaults make one, so every
// value is valid.
type Parameters struct {
	// ClusterID is the fsid of the Ceph cluster.
	ClusterID string
	Pool      string
	// DataPool holds the images' data; empty means Pool does.
	DataPool string
	// CreatePool allows CreateVolume to create Pool.
	CreatePool bool
	// Overcommit is how many times as large as its pool a volume may be.
	Overcommit int64
	// Layout is nil if the StorageClass leaves all of it to the driver.
	Layout *v1alpha1.ImageLayout
	Cache  CacheSize
	Engine v1alpha1.CacheEngine
	Mode   v1alpha1.CacheMode
	// Options are zero where the kernel's defaults apply.
	Options v1alpha1.CacheOptions
	// NodeGroups lists the only groups a volume may be placed in; empty allows all.
	NodeGroups []string
	// UncachedFallback allows nodes outside the volume's group, without a cache.
	UncachedFallback bool
	// MkfsOptions are passed to csi-node unchanged.
	MkfsOptions string
	// Claim is the "namespace/name" of the PersistentVolumeClaim, if external-provisioner passes
	// it.
	Claim string
}

// Keys of the StorageClass parameters.
const (
	keyClusterID     = "clusterID"
	keyPool          = "pool"
	keyDataPool      = "dataPool"
	keyCreatePool    = "createPool"
	keyOvercommit    = "maxOvercommit"
	keyImageFeatures = "imageFeatures"
	keyObjectSize    = "objectSize"
	keyStripeUnit    = "stripeUnit"
	keyStripeCount   = "stripeCount"
	keyCacheSize     = "cacheSize"
	keyCacheEngine   = "cacheEngine"
	keyCacheMode     = "cacheMode"
	keyMaxDirtyAge   = "maxDirtyAge"
	keyHighWatermark = "highWatermark"
	keyLowWatermark  = "lowWatermark"
	keyOrder         = "writeBackOrder"
	keyNodeGroups    = "nodeGroups"
	keyUncached      = "uncachedFallback"
	keyMkfsOptions   = v1alpha1.VolumeContextMkfsOptions

	sidecarPrefix = "csi.storage.k8s.io/"
	keyClaimName  = sidecarPrefix + "pvc/name"
	keyClaimSpace = sidecarPrefix + "pvc/namespace"
)

// Images take space only for what is written, so a volume may be larger than its pool. One that is
// much larger than the default allows is a slip of the pen.
const (
	DefaultOvercommit = 10
	MaxOvercommit     = 1000
)

// fields maps each key to its parser. Rules between keys are checked afterwards, in consistent.
var fields = map[string]func(*Parameters, string) error{
	keyClusterID:     func(p *Parameters, v string) error { return name(&p.ClusterID, v) },
	keyPool:          func(p *Parameters, v string) error { return name(&p.Pool, v) },
	keyDataPool:      func(p *Parameters, v string) error { return name(&p.DataPool, v) },
	keyCreatePool:    func(p *Parameters, v string) error { return boolean(&p.CreatePool, v) },
	keyOvercommit:    func(p *Parameters, v string) error { return number(&p.Overcommit, v, 1, MaxOvercommit) },
	keyImageFeatures: func(p *Parameters, v string) error { return features(&p.layout().Features, v) },
	keyObjectSize:    func(p *Parameters, v string) error { return objectSize(&p.layout().ObjectSizeBytes, v) },
	keyStripeUnit:    func(p *Parameters, v string) error { return bytes(&p.layout().StripeUnitBytes, v) },
	keyStripeCount:   func(p *Parameters, v string) error { return number(&p.layout().StripeCount, v, 1, 1024) },
	keyCacheSize:     func(p *Parameters, v string) (err error) { p.Cache, err = parseCacheSize(v); return err },
	keyCacheEngine:   func(p *Parameters, v string) error { return engine(&p.Engine, v) },
	keyCacheMode:     func(p *Parameters, v string) error { return mode(&p.Mode, v) },
	keyMaxDirtyAge:   func(p *Parameters, v string) error { return seconds(&p.Options.MaxDirtyAgeSeconds, v) },
	keyHighWatermark: func(p *Parameters, v string) error { return percent(&p.Options.HighWatermark, v) },
	keyLowWatermark:  func(p *Parameters, v string) error { return percent(&p.Options.LowWatermark, v) },
	keyOrder:         func(p *Parameters, v string) error { return order(&p.Options.WriteBackOrder, v) },
	keyUncached:      func(p *Parameters, v string) error { return boolean(&p.UncachedFallback, v) },
	keyNodeGroups:    func(p *Parameters, v string) error { return list(&p.NodeGroups, v) },
	keyMkfsOptions:   func(p *Parameters, v string) error { return options(&p.MkfsOptions, v) },
}

// WithDefaults returns the parameters of a StorageClass that sets none. They name no cluster and no
// pool.
func WithDefaults() Parameters {
	return Parameters{
		Overcommit: DefaultOvercommit, Engine: v1alpha1.CacheEngineWritecache, Mode: v1alpha1.CacheModeWriteback, Cache: defaultCacheSize(),
	}
}

// Parse parses StorageClass parameters. It returns ErrInvalid, with a list of what is allowed, for
// unknown keys, wrong values and combinations that cannot work. It ignores keys of
// external-provisioner.
func Parse(in map[string]string) (Parameters, error) {
	p := WithDefaults()
	for _, key := range slices.Sorted(maps.Keys(in)) {
		if strings.HasPrefix(key, sidecarPrefix) {
			continue
		}
		parse, known := fields[key]
		if !known {
			allowed := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
			return Parameters{}, fmt.Errorf("StorageClass parameter %q is unknown; there are %s: %w", key, allowed, ErrInvalid)
		}
		if err := parse(&p, strings.TrimSpace(in[key])); err != nil {
			return Parameters{}, fmt.Errorf("StorageClass parameter %s: %q %w: %w", key, in[key], err, ErrInvalid)
		}
	}
	if claim, space := in[keyClaimName], in[keyClaimSpace]; claim != "" && space != "" {
		p.Claim = space + "/" + claim
	}
	if err := p.consistent(in); err != nil {
		return Parameters{}, fmt.Errorf("StorageClass parameters: %w: %w", err, ErrInvalid)
	}
	return p, nil
}

// consistent checks the rules between keys.
func (p *Parameters) consistent(in map[string]string) error {
	for _, key := range []string{keyClusterID, keyPool} {
		if in[key] == "" {
			return fmt.Errorf("%s is required", key)
		}
	}
	if p.DataPool == p.Pool {
		return fmt.Errorf("%s and %s are the same; leave %s out", keyDataPool, keyPool, keyDataPool)
	}
	if l := p.Layout; l != nil {
		if err := consistentStripes(l); err != nil {
			return err
		}
		if err := consistentFeatures(l.Features); err != nil {
			return err
		}
	}
	return p.consistentOptions(p.Options)
}

func consistentStripes(l *v1alpha1.ImageLayout) error {
	if (l.StripeUnitBytes == 0) != (l.StripeCount == 0) {
		return fmt.Errorf("%s and %s go together", keyStripeUnit, keyStripeCount)
	}
	object := l.ObjectSizeBytes
	if object == 0 {
		object = defaultObjectSize
	}
	if l.StripeUnitBytes != 0 && object%l.StripeUnitBytes != 0 {
		return fmt.Errorf("%s %d does not divide the object size %d", keyStripeUnit, l.StripeUnitBytes, object)
	}
	return nil
}

// needs maps each feature that a StorageClass may name to the feature it needs. The kernels of the
// nodes cannot map an image with any other feature, or the driver does not use it.
var needs = map[string]string{
	"layering":       "",
	"exclusive-lock": "",
	"object-map":     "exclusive-lock",
	"fast-diff":      "object-map",
	"deep-flatten":   "",
}

func consistentFeatures(features []string) error {
	if features == nil {
		return nil
	}
	if !slices.Contains(features, "exclusive-lock") {
		return fmt.Errorf("%s needs exclusive-lock: only one host may have the image", keyImageFeatures)
	}
	for _, f := range features {
		if need := needs[f]; need != "" && !slices.Contains(features, need) {
			return fmt.Errorf("%s: %s needs %s", keyImageFeatures, f, need)
		}
	}
	return nil
}

func (p *Parameters) layout() *v1alpha1.ImageLayout {
	if p.Layout == nil {
		p.Layout = &v1alpha1.ImageLayout{}
	}
	return p.Layout
}

// VolumeContext returns the volume context: the parameters that csi-node needs.
func (p *Parameters) VolumeContext() map[string]string {
	if p.MkfsOptions == "" {
		return nil
	}
	return map[string]string{keyMkfsOptions: p.MkfsOptions}
}

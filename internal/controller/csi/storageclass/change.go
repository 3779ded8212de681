package storageclass

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// changeable are the parameters that a VolumeAttributesClass can have, in the order in which errors
// name them.
var changeable = []string{keyCacheMode, keyCacheSize, keyHighWatermark, keyLowWatermark, keyMaxDirtyAge, keyOrder}

// Change returns the parameters of a volume with those of a VolumeAttributesClass in their place. What
// the class does not name stays as it is. The parameters are checked as those of a StorageClass. It
// returns ErrInvalid, with a list of what can be changed, for a parameter that cannot.
func Change(p Parameters, attributes map[string]string) (Parameters, error) {
	var named Parameters // what the class itself sets
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		if strings.HasPrefix(key, sidecarPrefix) {
			continue
		}
		if err := checkChangeable(key); err != nil {
			return Parameters{}, err
		}
		for _, into := range []*Parameters{&named, &p} {
			if err := fields[key](into, strings.TrimSpace(attributes[key])); err != nil {
				return Parameters{}, fmt.Errorf("VolumeAttributesClass parameter %s: %q %w: %w", key, attributes[key], err, ErrInvalid)
			}
		}
	}
	if err := p.consistentOptions(named.Options); err != nil {
		return Parameters{}, fmt.Errorf("VolumeAttributesClass parameters: %w: %w", err, ErrInvalid)
	}
	return p, nil
}

func checkChangeable(key string) error {
	if slices.Contains(changeable, key) {
		return nil
	}
	why := "is unknown"
	if _, known := fields[key]; known {
		why = "cannot be changed after the volume was created"
	}
	if key == keyCacheEngine {
		why += " (to have another engine, clone the claim with a StorageClass that has it)"
	}
	return fmt.Errorf("VolumeAttributesClass parameter %q %s; %s can be changed: %w", key, why, strings.Join(changeable, ", "), ErrInvalid)
}

// consistentOptions checks the rules between the cache's mode and its options. named are the options
// that the request itself sets: those that a volume has from before may wait for the other mode.
func (p *Parameters) consistentOptions(named v1alpha1.CacheOptions) error {
	if p.Mode == v1alpha1.CacheModeWritethrough && named != (v1alpha1.CacheOptions{}) {
		return fmt.Errorf("%s, %s, %s and %s %s need %s %s: a cache that writes through is never dirty",
			keyMaxDirtyAge, keyHighWatermark, keyLowWatermark, keyOrder, v1alpha1.WriteBackOrderStrict, keyCacheMode,
			v1alpha1.CacheModeWriteback)
	}
	high, low := p.Options.HighWatermark, p.Options.LowWatermark
	if (high == 0) != (low == 0) || (high != 0 && low >= high) {
		return fmt.Errorf("%s and %s go together, and the low one is below the high one", keyHighWatermark, keyLowWatermark)
	}
	if p.Options.WriteBackOrder == v1alpha1.WriteBackOrderStrict && p.Engine != v1alpha1.CacheEngineLog {
		return fmt.Errorf("%s %s needs %s %s: %s writes back in no order", keyOrder, v1alpha1.WriteBackOrderStrict, keyCacheEngine,
			v1alpha1.CacheEngineLog, p.Engine)
	}
	return nil
}

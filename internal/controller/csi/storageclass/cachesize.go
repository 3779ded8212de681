package storageclass

import (
	"fmt"
	"strconv"
	"strings"
)

// CacheSize is the size of a volume's cache: a fixed number of bytes, or a percentage of the volume
// with bounds.
type CacheSize struct {
	bytes   int64 // above zero: fixed
	percent int64
	minimum int64
	maximum int64 // 0: none
}

// Limits of a volume's size, in bytes.
const (
	VolumeGrain    = 1 << 20 // a volume's size is a multiple of it
	MinVolumeBytes = 1 << 20
	MaxVolumeBytes = 1 << 50
	// DefaultVolumeBytes is the size of a volume whose request names none.
	DefaultVolumeBytes = 1 << 30
)

const (
	// cacheGrain is LVM's default extent: a cache takes whole extents.
	cacheGrain    = 4 << 20
	minCacheBytes = 16 << 20
	maxCacheBytes = 64 << 40
)

// defaultCacheSize applies to StorageClasses without cacheSize. It has a maximum because the kernel
// takes memory by a connected cache's size.
func defaultCacheSize() CacheSize {
	return CacheSize{percent: 10, minimum: 1 << 30, maximum: 100 << 30}
}

// parseCacheSize parses "20Gi", "10%", or a percentage with bounds: "10%,min=1Gi,max=100Gi".
func parseCacheSize(v string) (CacheSize, error) {
	usage := fmt.Errorf("is neither a size (20Gi) nor a percentage with bounds (10%%,min=1Gi,max=100Gi); sizes are from 16Mi to 64Ti")
	parts := strings.Split(v, ",")
	share, isShare := strings.CutSuffix(strings.TrimSpace(parts[0]), "%")
	if !isShare {
		var c CacheSize
		if len(parts) > 1 || bytes(&c.bytes, v) != nil || !validCacheBytes(c.bytes) {
			return CacheSize{}, usage
		}
		return c, nil
	}
	n, err := strconv.ParseInt(share, 10, 64)
	if err != nil || n < 1 || n > 100 {
		return CacheSize{}, usage
	}
	c := CacheSize{percent: n, minimum: minCacheBytes}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		bound := map[string]*int64{"min": &c.minimum, "max": &c.maximum}[key]
		if bound == nil || bytes(bound, value) != nil || !validCacheBytes(*bound) {
			return CacheSize{}, usage
		}
	}
	if c.maximum != 0 && c.maximum < c.minimum {
		return CacheSize{}, fmt.Errorf("has a minimum above its maximum")
	}
	return c, nil
}

// FixedCache is the size of a cache that has that many bytes already.
func FixedCache(bytes int64) CacheSize { return CacheSize{bytes: bytes} }

func validCacheBytes(n int64) bool { return n >= minCacheBytes && n <= maxCacheBytes }

// For returns the bytes of cache for a volume of volumeBytes: a multiple of 4 MiB, and at least
// what replication and cache need. A percentage gives at most the volume's size.
func (c CacheSize) For(volumeBytes int64) int64 {
	n := c.bytes
	if n == 0 {
		n = max(c.minimum, volumeBytes/100*c.percent)
		if c.maximum != 0 {
			n = min(n, c.maximum)
		}
		n = min(n, volumeBytes)
	}
	return min(RoundUp(max(n, minCacheBytes), cacheGrain), maxCacheBytes)
}

// Largest returns the size in bytes of the largest volume whose cache fits into room bytes; 0 if
// none does.
func (c CacheSize) Largest(room int64) int64 {
	if c.For(MaxVolumeBytes) <= room {
		return MaxVolumeBytes
	}
	// For never shrinks as the volume grows, so a binary search finds the border.
	fits, tooLarge := int64(0), int64(MaxVolumeBytes/VolumeGrain)
	for tooLarge-fits > 1 {
		if middle := (fits + tooLarge) / 2; c.For(middle*VolumeGrain) <= room {
			fits = middle
		} else {
			tooLarge = middle
		}
	}
	return fits * VolumeGrain
}

// RoundUp returns the lowest multiple of grain that is not below n.
func RoundUp(n, grain int64) int64 { return (n + grain - 1) / grain * grain }

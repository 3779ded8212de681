package storageclass

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// FuzzParse reads any parameters, one "key=value" a line. What is accepted is within its bounds, and
// is accepted again, as the same, when it is written out.
func FuzzParse(f *testing.F) {
	f.Add("clusterID=ceph\npool=rbd\ncacheEngine=log\nwriteBackOrder=strict")
	f.Add("clusterID=ceph\npool=rbd\ncacheSize=10%,min=1Gi,max=100Gi\nmaxDirtyAge=5m\nhighWatermark=70\nlowWatermark=30%")
	f.Add("clusterID=b1e4-9\npool=rbd\ndataPool=ec\nobjectSize=8Mi\nstripeUnit=64Ki\nstripeCount=4\nimageFeatures=object-map exclusive-lock,layering")
	f.Add("clusterID=c\npool=p\ncacheMode=writethrough\ncacheEngine=log\ncreatePool=true\nnodeGroups=g2, g1,g2\nmkfsOptions=-m 0\ncacheSize=64Mi")
	f.Add("clusterID=c\npool=p\ncsi.storage.k8s.io/pvc/name=a\ncsi.storage.k8s.io/pvc/namespace=b\ncacheSize=1e3Ki")
	f.Fuzz(func(t *testing.T, text string) {
		in := map[string]string{}
		for line := range strings.SplitSeq(text, "\n") {
			if key, value, ok := strings.Cut(line, "="); ok {
				in[key] = value
			}
		}
		p, err := Parse(in)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Errorf("%v is not ErrInvalid", err)
			}
			return
		}
		checkBounds(t, p)
		again, err := Parse(written(p))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Errorf("%q\n%+v %+v came back as\n%+v %+v, %v", in, p, p.Layout, again, again.Layout, err)
		}
	})
}

func checkBounds(t *testing.T, p Parameters) {
	t.Helper()
	for _, name := range slices.Concat([]string{p.ClusterID, p.Pool}, p.NodeGroups) {
		if name == "" || len(name) > 63 || strings.ContainsAny(name, "/@ \t,;=\"'\\\x00") || name[0] == '-' || name[0] == '.' {
			t.Errorf("name %q", name)
		}
	}
	o := p.Options
	if o.MaxDirtyAgeSeconds < 0 || o.HighWatermark < 0 || o.HighWatermark > 99 || o.LowWatermark < 0 || o.LowWatermark > o.HighWatermark {
		t.Errorf("%+v", o)
	}
	if l := p.Layout; l != nil && (l.ObjectSizeBytes < 0 || l.ObjectSizeBytes > 32<<20 || l.StripeUnitBytes < 0 || l.StripeUnitBytes > 32<<20 ||
		l.StripeCount < 0 || l.StripeCount > 1024) {
		t.Errorf("%+v", *l)
	}
	if p.DataPool == p.Pool {
		t.Errorf("data pool %q is the pool", p.DataPool)
	}
}

// written is the StorageClass that says what was understood.
func written(p Parameters) map[string]string {
	out := map[string]string{
		keyClusterID: p.ClusterID, keyPool: p.Pool, keyDataPool: p.DataPool, keyCreatePool: fmt.Sprint(p.CreatePool),
		keyCacheMode: string(p.Mode), keyCacheEngine: string(p.Engine), keyMkfsOptions: p.MkfsOptions, keyNodeGroups: strings.Join(p.NodeGroups, ","),
		keyCacheSize: p.Cache.written(),
	}
	if s := p.Options.MaxDirtyAgeSeconds; s > 0 {
		out[keyMaxDirtyAge] = fmt.Sprintf("%ds", s)
	}
	if p.Options.HighWatermark > 0 {
		out[keyHighWatermark], out[keyLowWatermark] = fmt.Sprint(p.Options.HighWatermark), fmt.Sprint(p.Options.LowWatermark)
	}
	if p.Options.WriteBackOrder != "" {
		out[keyOrder] = string(p.Options.WriteBackOrder)
	}
	if l := p.Layout; l != nil {
		out[keyImageFeatures] = strings.Join(l.Features, ",")
		for key, n := range map[string]int64{keyObjectSize: l.ObjectSizeBytes, keyStripeUnit: l.StripeUnitBytes, keyStripeCount: l.StripeCount} {
			if n > 0 {
				out[key] = fmt.Sprint(n)
			}
		}
	}
	if space, claim, ok := strings.Cut(p.Claim, "/"); ok {
		out[keyClaimSpace], out[keyClaimName] = space, claim
	}
	maps.DeleteFunc(out, func(_, value string) bool { return value == "" })
	return out
}

func (c CacheSize) written() string {
	if c.bytes > 0 {
		return fmt.Sprint(c.bytes)
	}
	text := fmt.Sprintf("%d%%,min=%d", c.percent, c.minimum)
	if c.maximum > 0 {
		text += fmt.Sprintf(",max=%d", c.maximum)
	}
	return text
}

// FuzzCacheSize reads any cacheSize. The cache of a volume is within the bounds that are written
// there and whole extents, never shrinks as the volume grows, and fits where it is said to fit.
func FuzzCacheSize(f *testing.F) {
	f.Add("20Gi", int64(1<<30), int64(100<<30))
	f.Add("10%", int64(64<<20), int64(1<<30))
	f.Add("10%,min=1Gi,max=100Gi", int64(1<<50), int64(17<<20))
	f.Add("100%, max=16777217", int64(1<<20), int64(0))
	f.Add("0.5Gi", int64(4097), int64(-1))
	f.Fuzz(func(t *testing.T, text string, volume, room int64) {
		c, err := parseCacheSize(text)
		if err != nil {
			return
		}
		if again, err := parseCacheSize(c.written()); err != nil || again != c {
			t.Errorf("%+v came back as %+v, %v", c, again, err)
		}
		if volume < MinVolumeBytes || volume > MaxVolumeBytes {
			return
		}
		n := c.For(volume)
		if n < minCacheBytes || n > maxCacheBytes || n%cacheGrain != 0 || n < c.bytes {
			t.Errorf("%q: a cache of %d bytes for %d", text, n, volume)
		}
		if c.bytes == 0 && (n >= max(minCacheBytes, volume)+cacheGrain || c.maximum > 0 && n >= c.maximum+cacheGrain || n < min(c.minimum, volume)) {
			t.Errorf("%q: a cache of %d bytes for %d", text, n, volume)
		}
		if larger := c.For(min(volume+VolumeGrain, MaxVolumeBytes)); larger < n {
			t.Errorf("%q: %d bytes for %d, and %d for a larger volume", text, n, volume, larger)
		}
		fits := c.Largest(room)
		if fits%VolumeGrain != 0 || fits < 0 || fits > MaxVolumeBytes || fits > 0 && c.For(fits) > room ||
			fits < MaxVolumeBytes && c.For(fits+VolumeGrain) <= room {
			t.Errorf("%q: %d is not the largest volume that fits into %d", text, fits, room)
		}
	})
}

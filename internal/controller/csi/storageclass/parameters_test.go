package storageclass

import (
	"errors"
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// with is the smallest StorageClass, with more keys; an empty value takes a key out.
func with(pairs ...string) map[string]string {
	p := map[string]string{"clusterID": "ceph", "pool": "rbd"}
	for i := 0; i < len(pairs); i += 2 {
		p[pairs[i]] = pairs[i+1]
		if pairs[i+1] == "" {
			delete(p, pairs[i])
		}
	}
	return p
}

func TestParse(t *testing.T) {
	base, err := Parse(with())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		in   map[string]string
		want func(*Parameters)
	}{
		"smallest":      {with(), func(*Parameters) {}},
		"sidecar's":     {with("csi.storage.k8s.io/fstype", "xfs"), func(*Parameters) {}},
		"claim":         {with("csi.storage.k8s.io/pvc/name", "c", "csi.storage.k8s.io/pvc/namespace", "n"), func(p *Parameters) { p.Claim = "n/c" }},
		"data pool":     {with("dataPool", "ec"), func(p *Parameters) { p.DataPool = "ec" }},
		"create pool":   {with("createPool", "true"), func(p *Parameters) { p.CreatePool = true }},
		"overcommit":    {with("maxOvercommit", "2"), func(p *Parameters) { p.Overcommit = 2 }},
		"engine":        {with("cacheEngine", "log"), func(p *Parameters) { p.Engine = v1alpha1.CacheEngineLog }},
		"write-through": {with("cacheMode", "writethrough"), func(p *Parameters) { p.Mode = v1alpha1.CacheModeWritethrough }},
		"groups":        {with("nodeGroups", "g2, g1,g2"), func(p *Parameters) { p.NodeGroups = []string{"g1", "g2"} }},
		"mkfs options":  {with("mkfsOptions", "-m 0"), func(p *Parameters) { p.MkfsOptions = "-m 0" }},
		"watermarks": {with("highWatermark", "70", "lowWatermark", "30%"), func(p *Parameters) {
			p.Options = v1alpha1.CacheOptions{HighWatermark: 70, LowWatermark: 30}
		}},
		"dirty age":                   {with("maxDirtyAge", "5m"), func(p *Parameters) { p.Options.MaxDirtyAgeSeconds = 300 }},
		"merged order, by any engine": {with("writeBackOrder", "merged"), func(*Parameters) {}},
		"strict order": {with("writeBackOrder", "strict", "cacheEngine", "log"), func(p *Parameters) {
			p.Engine, p.Options.WriteBackOrder = v1alpha1.CacheEngineLog, v1alpha1.WriteBackOrderStrict
		}},
		"longest dirty age": {with("maxDirtyAge", "24h"), func(p *Parameters) { p.Options.MaxDirtyAgeSeconds = 86400 }},
		"layout": {with("objectSize", "8Mi", "stripeUnit", "64Ki", "stripeCount", "4"), func(p *Parameters) {
			p.Layout = &v1alpha1.ImageLayout{ObjectSizeBytes: 8 << 20, StripeUnitBytes: 64 << 10, StripeCount: 4}
		}},
		"features in any order": {with("imageFeatures", "object-map exclusive-lock,layering"), func(p *Parameters) {
			p.Layout = &v1alpha1.ImageLayout{Features: []string{"exclusive-lock", "layering", "object-map"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Parse(tc.in)
			if err != nil {
				t.Fatal(err)
			}
			want := base
			tc.want(&want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		in   map[string]string
		says string
	}{
		"unknown key":                  {with("Pool", "x"), "there are cacheEngine, cacheMode, cacheSize, clusterID"},
		"no cluster":                   {with("clusterID", ""), "clusterID is required"},
		"no pool":                      {with("pool", ""), "pool is required"},
		"slash in pool":                {with("pool", "a/b"), "not a name"},
		"dash first":                   {with("pool", "-f"), "not a name"},
		"cluster as path":              {with("clusterID", ".."), "not a name"},
		"data pool is the pool":        {with("dataPool", "rbd"), "are the same"},
		"create pool":                  {with("createPool", "yes please"), "neither true nor false"},
		"no room at all":               {with("maxOvercommit", "0"), "not a number from 1 to 1000"},
		"unknown feature":              {with("imageFeatures", "exclusive-lock,journaling"), "kernels can map"},
		"no exclusive lock":            {with("imageFeatures", "layering"), "needs exclusive-lock"},
		"object map needs":             {with("imageFeatures", "exclusive-lock,fast-diff"), "fast-diff needs object-map"},
		"object size":                  {with("objectSize", "5Mi"), "power of two"},
		"object too large":             {with("objectSize", "64Mi"), "power of two"},
		"stripe unit alone":            {with("stripeUnit", "64Ki"), "go together"},
		"stripe unit does not divide":  {with("stripeUnit", "3Mi", "stripeCount", "2"), "does not divide"},
		"stripe count":                 {with("stripeUnit", "64Ki", "stripeCount", "0"), "not a number from 1"},
		"cache size":                   {with("cacheSize", "much"), "neither a size"},
		"cache too small":              {with("cacheSize", "1Mi"), "neither a size"},
		"cache share":                  {with("cacheSize", "0%"), "neither a size"},
		"cache bounds":                 {with("cacheSize", "5%,min=2Gi,max=1Gi"), "minimum above its maximum"},
		"cache bound unknown":          {with("cacheSize", "5%,most=2Gi"), "neither a size"},
		"cache mode":                   {with("cacheMode", "writeback "), ""},
		"cache engine unknown":         {with("cacheEngine", "bcache"), "neither writecache nor log"},
		"cache mode unknown":           {with("cacheMode", "none"), "neither writeback nor writethrough"},
		"watermark without its fellow": {with("highWatermark", "70"), "go together"},
		"watermarks the wrong way":     {with("highWatermark", "30", "lowWatermark", "70"), "below the high one"},
		"watermark":                    {with("highWatermark", "100", "lowWatermark", "1"), "percentage"},
		"write-through is never dirty": {with("cacheMode", "writethrough", "maxDirtyAge", "1m"), "never dirty"},
		"an order of write-back":       {with("cacheEngine", "log", "writeBackOrder", "default"), "neither merged nor strict"},
		"an order that writecache has not": {with("writeBackOrder", "strict"),
			"writeBackOrder strict needs cacheEngine log: writecache writes back in no order"},
		"an order and write-through":   {with("cacheEngine", "log", "writeBackOrder", "strict", "cacheMode", "writethrough"), "never dirty"},
		"dirty age":                    {with("maxDirtyAge", "1.5s"), "whole seconds"},
		"dirty age above the kernel's": {with("maxDirtyAge", "24h0m1s"), "24h"},
		"no groups":                    {with("nodeGroups", " , "), "is empty"},
		"mkfs options":                 {with("mkfsOptions", "-m\n0"), "printable"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.in)
			if tc.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestParseKeepsItsInput(t *testing.T) {
	in := with("imageFeatures", "layering,exclusive-lock")
	before := maps.Clone(in)
	if _, err := Parse(in); err != nil || !maps.Equal(in, before) {
		t.Errorf("%v, %v", err, in)
	}
}

func TestCacheSizes(t *testing.T) {
	const mib, gib = int64(1 << 20), int64(1 << 30)
	for _, tc := range []struct {
		size         string
		volume, want int64
	}{
		{"20Gi", 100 * gib, 20 * gib},
		{"20Gi", gib, 20 * gib},
		{"17Mi", gib, 20 * mib},
		{"10%", 100 * gib, 10 * gib},
		{"10%", gib, 104 * mib},
		{"10%", mib, 16 * mib},
		{"10%,min=1Gi", 2 * gib, gib},
		{"10%,min=1Gi", 512 * mib, 512 * mib},
		{"10%,min=1Gi,max=5Gi", 1000 * gib, 5 * gib},
		{"100%", 10 * gib, 10 * gib},
	} {
		c, err := parseCacheSize(tc.size)
		if err != nil {
			t.Fatal(tc.size, err)
		}
		if got := c.For(tc.volume); got != tc.want {
			t.Errorf("%s of %d: %d, want %d", tc.size, tc.volume, got, tc.want)
		}
	}
	if got := defaultCacheSize().For(10 << 40); got != 100*gib {
		t.Errorf("without cacheSize a volume of 10 TiB gets a cache of %d bytes, want 100 GiB", got)
	}
}

// TestLargestVolumeIsTheLargest checks the border: that volume's cache fits, the next one's does
// not.
func TestLargestVolumeIsTheLargest(t *testing.T) {
	for _, size := range []string{"20Gi", "10%", "10%,min=1Gi", "1%,max=2Gi", "100%", "16Mi"} {
		c, err := parseCacheSize(size)
		if err != nil {
			t.Fatal(err)
		}
		for _, room := range []int64{0, 1 << 20, 16 << 20, 1 << 30, 3<<30 + 5, 1 << 40} {
			largest := c.Largest(room)
			if largest > 0 && c.For(largest) > room {
				t.Errorf("%s: the cache of a volume of %d does not fit into %d", size, largest, room)
			}
			if largest < MaxVolumeBytes && c.For(largest+VolumeGrain) <= room {
				t.Errorf("%s: a volume larger than %d would fit into %d", size, largest, room)
			}
		}
	}
}

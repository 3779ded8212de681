package storageclass

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// tuned is a volume with options.
func tuned() Parameters {
	p := WithDefaults()
	p.Options = v1alpha1.CacheOptions{HighWatermark: 70, LowWatermark: 30, MaxDirtyAgeSeconds: 300}
	return p
}

const strict = v1alpha1.WriteBackOrderStrict

// ofLog is a volume of the engine log.
func ofLog(order v1alpha1.WriteBackOrder) Parameters {
	p := tuned()
	p.Engine, p.Options.WriteBackOrder = v1alpha1.CacheEngineLog, order
	return p
}

func TestChange(t *testing.T) {
	for name, tc := range map[string]struct {
		from Parameters
		in   map[string]string
		want func(*Parameters)
	}{
		"one option; the others stay": {tuned(), map[string]string{"maxDirtyAge": "30s"}, func(p *Parameters) { p.Options.MaxDirtyAgeSeconds = 30 }},
		"one watermark of two":        {tuned(), map[string]string{"highWatermark": "50%"}, func(p *Parameters) { p.Options.HighWatermark = 50 }},
		"back to the default": {tuned(), map[string]string{"maxDirtyAge": "default", "highWatermark": "default", "lowWatermark": "default"},
			func(p *Parameters) { p.Options = v1alpha1.CacheOptions{} }},
		"write-through; the options wait": {tuned(), map[string]string{"cacheMode": "writethrough"}, func(p *Parameters) {
			p.Mode = v1alpha1.CacheModeWritethrough
		}},
		"strict order":       {ofLog(""), map[string]string{"writeBackOrder": "strict"}, func(p *Parameters) { p.Options.WriteBackOrder = strict }},
		"merged order again": {ofLog(strict), map[string]string{"writeBackOrder": "merged"}, func(p *Parameters) { p.Options.WriteBackOrder = "" }},
		"another option of a strict volume": {ofLog(strict), map[string]string{"maxDirtyAge": "30s"}, func(p *Parameters) {
			p.Options.MaxDirtyAgeSeconds = 30
		}},
		"another size of the cache": {tuned(), map[string]string{"cacheSize": "20Gi"}, func(p *Parameters) { p.Cache = FixedCache(20 << 30) }},
		"no parameters":             {tuned(), nil, func(*Parameters) {}},
		"sidecar's":                 {tuned(), map[string]string{"csi.storage.k8s.io/pvc/name": "c"}, func(*Parameters) {}},
	} {
		t.Run(name, func(t *testing.T) {
			before := maps.Clone(tc.in)
			got, err := Change(tc.from, tc.in)
			if err != nil || !maps.Equal(tc.in, before) {
				t.Fatal(err, tc.in)
			}
			want := tc.from
			tc.want(&want)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v", got, want)
			}
		})
	}
}

func TestOptionsThatWaitedApplyInWriteBackAgain(t *testing.T) {
	through, err := Change(tuned(), map[string]string{"cacheMode": "writethrough"})
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Change(through, map[string]string{"cacheMode": "writeback"}); err != nil || !reflect.DeepEqual(back, tuned()) {
		t.Errorf("%+v, %v", back, err)
	}
}

func TestChangeRefuses(t *testing.T) {
	through := WithDefaults()
	through.Mode = v1alpha1.CacheModeWritethrough
	for name, tc := range map[string]struct {
		from Parameters
		in   map[string]string
		says string
	}{
		"an unknown key":              {tuned(), map[string]string{"iops": "1"}, `"iops" is unknown; cacheMode, cacheSize, highWatermark`},
		"what is for ever":            {tuned(), map[string]string{"pool": "fast"}, `"pool" cannot be changed after the volume was created; cacheMode,`},
		"a size below the least":      {tuned(), map[string]string{"cacheSize": "8Mi"}, "16Mi to 64Ti"},
		"the cache's engine":          {tuned(), map[string]string{"cacheEngine": "log"}, `"cacheEngine" cannot be changed after the volume was created (to have another engine, clone`},
		"an order of writecache":      {tuned(), map[string]string{"writeBackOrder": "strict"}, "writeBackOrder strict needs cacheEngine log"},
		"a value":                     {tuned(), map[string]string{"maxDirtyAge": "soon"}, "maxDirtyAge"},
		"a mode":                      {tuned(), map[string]string{"cacheMode": "default"}, "neither writeback nor writethrough"},
		"one watermark of none":       {WithDefaults(), map[string]string{"highWatermark": "50"}, "go together"},
		"one watermark gone":          {tuned(), map[string]string{"lowWatermark": "default"}, "go together"},
		"below the volume's own":      {tuned(), map[string]string{"highWatermark": "20"}, "below the high one"},
		"an option in write-through":  {through, map[string]string{"maxDirtyAge": "5m"}, "need cacheMode writeback"},
		"an option and write-through": {tuned(), map[string]string{"maxDirtyAge": "5m", "cacheMode": "writethrough"}, "need cacheMode writeback"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Change(tc.from, tc.in); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// TestPageSaysWhatCanBeChanged compares the page's second table with the code.
func TestPageSaysWhatCanBeChanged(t *testing.T) {
	when := changes(t)
	if got, want := slices.Sorted(maps.Keys(when)), slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("docs/parameters.md says whether these can be changed:\n%v\nthe code has\n%v", got, want)
	}
	for key, text := range when {
		if changes := slices.Contains(changeable, key); changes == (text == "never") {
			t.Errorf("docs/parameters.md: %s changes %q, and in the code: %v", key, text, changes)
		}
	}
}

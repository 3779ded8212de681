package authority

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestAHostWithAFailedDiskGoesOnRecordUnlessItHasTheOnlyCurrentCopy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(v *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest)
		want   []string
		code   escache.Code
	}{
		"attached there":         {func(*v1alpha1.CacheVolume, *escache.OutdateSelfRequest) {}, []string{"n1"}, ""},
		"attached on the peer":   {func(v *v1alpha1.CacheVolume, _ *escache.OutdateSelfRequest) { v.Status.AttachedNode = "n2" }, []string{"n1"}, ""},
		"attached nowhere":       {func(v *v1alpha1.CacheVolume, _ *escache.OutdateSelfRequest) { v.Status.AttachedNode = "" }, []string{"n1"}, ""},
		"on record already":      {func(v *v1alpha1.CacheVolume, _ *escache.OutdateSelfRequest) { v.Status.Outdated = []string{"n1"} }, []string{"n1"}, ""},
		"the image is not known": {func(_ *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) { r.ImageID = "" }, []string{"n1"}, ""},
		"the only current one": {
			func(v *v1alpha1.CacheVolume, _ *escache.OutdateSelfRequest) { v.Status.Outdated = []string{"n2"} }, nil, escache.CodeOutdated,
		},
		"another image":      {func(_ *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) { r.ImageID = "x" }, nil, escache.CodeIdentityMismatch},
		"no replica there":   {func(_ *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) { r.Node = "n3" }, nil, escache.CodeFencingRefused},
		"an earlier partner": {func(_ *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) { r.Peer = "n3" }, nil, escache.CodeFencingRefused},
		"booted, attached on the peer": {func(v *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) {
			v.Status.AttachedNode, r.Booted = "n2", true
		}, []string{"n1"}, ""},
		"booted, and attached there": {func(_ *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) { r.Booted = true }, nil, escache.CodeStaleEpoch},
		"booted, attached nowhere": {func(v *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) {
			v.Status.AttachedNode, r.Booted = "", true
		}, nil, escache.CodeStaleEpoch},
		"booted, the only current one": {func(v *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) {
			v.Status.AttachedNode, v.Status.Outdated, r.Booted = "n2", []string{"n2"}, true
		}, nil, escache.CodeOutdated},
		"its own peer": {func(_ *v1alpha1.CacheVolume, r *escache.OutdateSelfRequest) { r.Peer = "n1" }, nil, escache.CodeFencingRefused},
	} {
		t.Run(name, func(t *testing.T) {
			v := &v1alpha1.CacheVolume{}
			v.Spec.Replicas = []string{"n1", "n2"}
			v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", ImageID: "id"}
			r := escache.OutdateSelfRequest{ImageID: "id", Node: "n1", Peer: "n2"}
			c.change(v, &r)
			got, err := MayBeOutdated(v, r, time.Unix(0, 0))
			var code escache.Code
			if refused, ok := err.(*RefusedError); ok { //nolint:errorlint // it is the type that is tested
				code = refused.Code
			}
			if !slices.Equal(got.Outdated, c.want) || code != c.code {
				t.Errorf("got %v, %v", got, err)
			}
			if err != nil {
				return
			}
			v.Status.Outdated, v.Status.Conditions = got.Outdated, got.Conditions
			again, err := MayBeOutdated(v, r, time.Unix(0, 1))
			if err != nil || reflect.DeepEqual(again, got) {
				t.Errorf("a second report changes nothing: %v, %v", again, err)
			}
		})
	}
}

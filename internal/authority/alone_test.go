package authority

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestMayGoOnAlone(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, tc := range []struct {
		name   string
		change func(s *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest)
		code   escache.Code // of the refusal; empty: granted
	}{
		{"the attached node in its epoch", func(*v1alpha1.CacheVolumeStatus, *escache.OutdatePeerRequest) {}, ""},
		{"asked again", func(s *v1alpha1.CacheVolumeStatus, _ *escache.OutdatePeerRequest) { s.Outdated = []string{"n2"} }, ""},
		{"not attached", func(s *v1alpha1.CacheVolumeStatus, _ *escache.OutdatePeerRequest) { s.AttachedNode = "n2" }, escache.CodeStaleEpoch},
		{"an older epoch", func(_ *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest) { r.Epoch = 6 }, escache.CodeStaleEpoch},
		{"outdated itself", func(s *v1alpha1.CacheVolumeStatus, _ *escache.OutdatePeerRequest) { s.Outdated = []string{"n1"} }, escache.CodeOutdated},
		{"a peer without a replica", func(_ *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest) { r.Peer = "n3" }, escache.CodeFencingRefused},
		{"a former peer, while its place is not filled", func(s *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest) {
			r.Peer, s.Outdated = "n3", []string{"n2"}
		}, ""},
		{"itself as its peer", func(_ *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest) { r.Peer = "n1" }, escache.CodeFencingRefused},
		{"another image", func(_ *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest) { r.ImageID = "j" }, escache.CodeIdentityMismatch},
		{"no image known yet", func(s *v1alpha1.CacheVolumeStatus, r *escache.OutdatePeerRequest) { s.ImageID, r.ImageID = "", "j" }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode, s.ImageID = "n1", "i" })
			r := escache.OutdatePeerRequest{ImageID: "i", Node: "n1", Peer: "n2", Epoch: 7}
			tc.change(&v.Status, &r)
			grant, err := MayGoOnAlone(v, r, now)
			if refused, ok := errors.AsType[*RefusedError](err); tc.code != "" && (!ok || refused.Code != tc.code || !errors.Is(err, ErrRefused)) {
				t.Fatalf("got %v, want %s", err, tc.code)
			}
			if tc.code == "" && (err != nil || !slices.Contains(grant.Outdated, "n2") || !slices.Contains(grant.Outdated, r.Peer)) {
				t.Fatalf("got %+v, %v", grant, err)
			}
		})
	}
}

// The record must change with each grant: a removal of the peer that is under way has to fail.
func TestARepeatedGrantChangesTheRecord(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" })
	r := escache.OutdatePeerRequest{Node: "n1", Peer: "n2", Epoch: 7}
	now := time.Unix(1_800_000_000, 0)
	first, err := MayGoOnAlone(v, r, now)
	if err != nil {
		t.Fatal(err)
	}
	v.Status.Outdated, v.Status.Conditions = first.Outdated, first.Conditions
	again, err := MayGoOnAlone(v, r, now.Add(time.Nanosecond))
	if err != nil || reflect.DeepEqual(first, again) {
		t.Errorf("got %+v again, %v", again, err)
	}
}

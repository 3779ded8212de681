package authority

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestDrained(t *testing.T) {
	claimed := func(s *v1alpha1.CacheVolumeStatus) { drained(s); s.Authority = v1alpha1.AuthorityCache }
	through := func(change func(*answer)) answer {
		r := answer{Status: escache.VolumeStatus{
			State: escache.StateDraining, Role: escache.RolePrimary, Epoch: 7, Mode: escache.ModeWritethrough, DirtyBytes: new(int64(0)),
		}}
		change(&r)
		return r
	}
	same := func(*answer) {}
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		report answer
		want   bool
	}{
		{"clean and writing through", claimed, through(same), true},
		{"while a flush runs", claimed, through(func(r *answer) { r.Status.State = escache.StateFlushing }), true},
		{"one byte dirty", claimed, through(func(r *answer) { r.Status.DirtyBytes = new(int64(1)) }), false},
		{"dirtiness not known", claimed, through(func(r *answer) { r.Status.DirtyBytes = nil }), false},
		{"clean, but writing back", claimed, through(func(r *answer) { r.Status.Mode = escache.ModeWriteback }), false},
		{"no mode said", claimed, through(func(r *answer) { r.Status.Mode = "" }), false},
		{"of an earlier attachment", claimed, through(func(r *answer) { r.Status.Epoch = 6 }), false},
		{"no answer", claimed, through(func(r *answer) { r.Err = errors.New("no route") }), false},
		{"in error", claimed, through(func(r *answer) { r.Status.State = escache.StateError }), false},
		{"clean without the link's secret", claimed, through(func(r *answer) {
			r.Status.Error = &escache.Fault{Code: escache.CodeSecretMissing}
		}), true},
		{"clean with a fault", claimed, through(func(r *answer) { r.Status.Error = &escache.Fault{Code: escache.CodeCacheError} }), false},
		{"clean on the peer's disk, its own has failed", claimed, through(func(r *answer) {
			r.Status.Error, r.Status.DiskState = &escache.Fault{Code: escache.CodeCacheError}, escache.DiskDiskless
		}), true},
		{"frozen without a disk", claimed, through(func(r *answer) {
			r.Status.Error, r.Status.DiskState = &escache.Fault{Code: escache.CodeCacheError}, escache.DiskDiskless
			r.Status.IOSuspended = true
		}), false},
		{"not connected", claimed, through(func(r *answer) { r.Status.State = escache.StateStandby }), false},
		{"not primary", claimed, through(func(r *answer) { r.Status.Role = escache.RoleSecondary }), false},
		{"nobody asked for it", func(s *v1alpha1.CacheVolumeStatus) { claimed(s); s.WriteThrough = nil }, through(same), false},
		{"asked for in an earlier attachment", func(s *v1alpha1.CacheVolumeStatus) { claimed(s); s.WriteThrough[0].Epoch = 6 }, through(same), false},
		{"attached nowhere", func(s *v1alpha1.CacheVolumeStatus) { claimed(s); s.AttachedNode = "" }, through(same), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			if got := Drained(v, tc.report.heard(v, "n1")); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTheRepairClaimsOnlyTheAttachmentThatItIsFor(t *testing.T) {
	for name, c := range map[string]struct {
		owner  string
		repair *v1alpha1.ReplicaRepair
		want   bool
	}{
		"it is for this attachment":     {RepairClaim, &v1alpha1.ReplicaRepair{Epoch: 3}, true},
		"it is for an earlier one":      {RepairClaim, &v1alpha1.ReplicaRepair{Epoch: 2}, false},
		"none is on record":             {RepairClaim, nil, false},
		"somebody else needs no repair": {"cacheflush/x", nil, true},
	} {
		v := &v1alpha1.CacheVolume{}
		v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Epoch: 3, Repair: c.repair}
		if err := MayBegin(v, c.owner); (err == nil) != c.want || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheClaimOfTheRepairEndsOnlyWhenEveryReplicaCounts(t *testing.T) {
	for name, c := range map[string]struct {
		owner    string
		epoch    int64
		outdated []string
		want     bool
	}{
		"both count":                          {RepairClaim, 3, nil, true},
		"one that is not the volume's is old": {RepairClaim, 3, []string{"n3"}, true},
		"the new one is being filled":         {RepairClaim, 3, []string{"n3", "n2"}, false},
		"the holder's own is old":             {RepairClaim, 3, []string{"n1"}, false},
		"it is of an earlier attachment":      {RepairClaim, 2, []string{"n2"}, true},
		"it is somebody else's":               {"cacheflush/x", 3, []string{"n2"}, true},
	} {
		v := &v1alpha1.CacheVolume{}
		v.Spec.Replicas = []string{"n1", "n2"}
		v.Status = v1alpha1.CacheVolumeStatus{
			AttachedNode: "n1", Epoch: 3, Outdated: c.outdated, WriteThrough: []v1alpha1.WriteThroughClaim{{Owner: c.owner, Epoch: c.epoch}},
		}
		if err := MayEnd(v, c.owner); (err == nil) != c.want || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

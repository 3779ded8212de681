package authority

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestACopyCountsOnlyWhenItsHolderShowsItCurrentAndWouldFreezeForIt(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *escache.VolumeStatus)
		want   bool
	}{
		"both current":               {func(*escache.VolumeStatus) {}, true},
		"the holder may go on alone": {func(s *escache.VolumeStatus) { s.MayGoOnAlone = true }, false},
		"the holder is frozen":       {func(s *escache.VolumeStatus) { s.IOSuspended = true }, false},
		"another attachment":         {func(s *escache.VolumeStatus) { s.Epoch = 2 }, false},
		"not Primary":                {func(s *escache.VolumeStatus) { s.Role = escache.RoleSecondary }, false},
		"its own disk is lost":       {func(s *escache.VolumeStatus) { s.DiskState = escache.DiskDiskless }, false},
		"a resync runs":              {func(s *escache.VolumeStatus) { s.SyncedPercent = 40 }, false},
		"the peer has no disk":       {func(s *escache.VolumeStatus) { s.Peers[0].DiskState = escache.DiskDiskless }, false},
		"the link is down":           {func(s *escache.VolumeStatus) { s.Peers[0].ConnectionState = "WFConnection" }, false},
		"another peer":               {func(s *escache.VolumeStatus) { s.Peers[0].Name = "n3" }, false},
	} {
		v := &v1alpha1.CacheVolume{}
		v.Spec.Replicas, v.Status.Epoch = []string{"n1", "n2"}, 3
		s := escache.VolumeStatus{
			State: escache.StateConnected, Role: escache.RolePrimary, Epoch: 3, DiskState: escache.DiskUpToDate, SyncedPercent: 100,
			Peers: []escache.Peer{{Name: "n2", ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}},
		}
		c.change(&s)
		if got := Resynced(v, Heard(v, "n1", s, nil), "n2"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestACopyMayLeaveItsHostOnlyWhenAllIsInCephAndStaysThere(t *testing.T) {
	for name, c := range map[string]struct {
		change func(v *v1alpha1.CacheVolume, s *escache.VolumeStatus)
		from   string
		want   bool
	}{
		"all is in Ceph": {func(*v1alpha1.CacheVolume, *escache.VolumeStatus) {}, "n2", true},
		"the record says that the cache may be dirty": {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) {
			v.Status.Authority = v1alpha1.AuthorityCache
		}, "n2", false},
		"nothing keeps it there": {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) { v.Status.WriteThrough = nil }, "n2", false},
		"only an evacuation does, which may end": {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) {
			v.Status.WriteThrough[0].Owner = v1alpha1.FlushOwner("evacuate-n2")
		}, "n2", false},
		"the claim is of an earlier attachment": {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) {
			v.Status.WriteThrough[0].Epoch = 2
		}, "n2", false},
		"the holder writes back":                    {func(_ *v1alpha1.CacheVolume, s *escache.VolumeStatus) { s.Mode = escache.ModeWriteback }, "n2", false},
		"the holder has dirty data":                 {func(_ *v1alpha1.CacheVolume, s *escache.VolumeStatus) { s.DirtyBytes = new(int64(1)) }, "n2", false},
		"the holder does not know what is dirty":    {func(_ *v1alpha1.CacheVolume, s *escache.VolumeStatus) { s.DirtyBytes = nil }, "n2", false},
		"the holder answers for another attachment": {func(_ *v1alpha1.CacheVolume, s *escache.VolumeStatus) { s.Epoch = 2 }, "n2", false},
		"the holder's own disk has failed":          {func(_ *v1alpha1.CacheVolume, s *escache.VolumeStatus) { s.DiskState = escache.DiskDiskless }, "n2", false},
		"the holder is on record as outdated":       {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) { v.Status.Outdated = []string{"n1"} }, "n2", false},
		"the volume is attached anew":               {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) { v.Status.Epoch = 4 }, "n2", false},
		"the volume is detached":                    {func(v *v1alpha1.CacheVolume, _ *escache.VolumeStatus) { v.Status.AttachedNode = "" }, "n2", false},
		"it is the holder's own":                    {func(*v1alpha1.CacheVolume, *escache.VolumeStatus) {}, "n1", false},
		"the volume has none there":                 {func(*v1alpha1.CacheVolume, *escache.VolumeStatus) {}, "n3", false},
	} {
		v := &v1alpha1.CacheVolume{}
		v.Spec.Replicas, v.Status.Epoch, v.Status.AttachedNode = []string{"n1", "n2"}, 3, "n1"
		v.Status.Authority = v1alpha1.AuthorityCeph
		v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: RepairClaim, Epoch: 3}}
		s := escache.VolumeStatus{
			State: escache.StateDraining, Role: escache.RolePrimary, Epoch: 3, DiskState: escache.DiskUpToDate,
			Mode: escache.ModeWritethrough, DirtyBytes: new(int64),
		}
		c.change(v, &s)
		at, err := CopyMayLeave(v, 3, c.from, Heard(v, "n1", s, nil))
		if (err == nil) != c.want || c.want && at != "n1" || err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %q, %v", name, at, err)
		}
		if c.want {
			if _, err := CopyMayLeave(v, 3, c.from, Heard(v, "n1", s, errors.New("no route"))); err == nil {
				t.Errorf("%s: it leaves, and the holder does not answer", name)
			}
		}
	}
}

package authority

import (
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

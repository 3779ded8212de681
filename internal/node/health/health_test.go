package health

import (
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func healthy() escache.VolumeStatus {
	dirty := int64(10 << 20)
	return escache.VolumeStatus{
		State: escache.StateConnected, Role: escache.RolePrimary, Mode: escache.ModeWriteback, CacheBytes: 1 << 30, DirtyBytes: &dirty,
		DiskState: "UpToDate", SyncedPercent: 100,
		Peers: []escache.Peer{{Name: "n2", ConnectionState: "Connected", DiskState: "UpToDate"}},
	}
}

func TestFindings(t *testing.T) {
	rows := []struct {
		name    string
		change  func(s *escache.VolumeStatus)
		stalled bool
		want    []Reason
	}{
		{"all well", func(*escache.VolumeStatus) {}, false, nil},
		{"peer lost", func(s *escache.VolumeStatus) {
			s.Peers[0].ConnectionState, s.Peers[0].DiskState = "WFConnection", "DUnknown"
		},
			false, []Reason{PeerLost}},
		{"peer lost and frozen", func(s *escache.VolumeStatus) { s.Peers[0].ConnectionState, s.IOSuspended = "WFConnection", true },
			false, []Reason{IOFrozen, PeerLost}},
		{"frozen, said once", func(s *escache.VolumeStatus) {
			s.Error, s.IOSuspended = &escache.Fault{Code: escache.CodePeerUnavailable}, true
		}, false, []Reason{IOFrozen}},
		{"frozen, and the disk has failed", func(s *escache.VolumeStatus) {
			s.Error, s.IOSuspended = &escache.Fault{Code: escache.CodeCacheError}, true
		}, false, []Reason{CacheError, IOFrozen}},
		{"peer lost, but all is in Ceph", func(s *escache.VolumeStatus) {
			s.Peers[0].ConnectionState, s.Mode, s.DirtyBytes = "WFConnection", escache.ModeWritethrough, new(int64)
		}, false, nil},
		{"resync", func(s *escache.VolumeStatus) {
			s.Peers[0].ConnectionState, s.Peers[0].DiskState, s.SyncedPercent = "SyncSource", "Inconsistent", 12.5
		}, false, []Reason{PeerOutdated, Resyncing}},
		{"local disk lost", func(s *escache.VolumeStatus) { s.DiskState = "Diskless" }, false, []Reason{LocalDiskLost}},
		{"no second replica", func(s *escache.VolumeStatus) { s.Peers = nil }, false, []Reason{PeerLost}},
		{"cache nearly full", func(s *escache.VolumeStatus) { *s.DirtyBytes = 1 << 30 }, false, []Reason{CacheNearlyFull}},
		{"Ceph stalled", func(*escache.VolumeStatus) {}, true, []Reason{CephStalled}},
		{"Ceph silent, said once", func(s *escache.VolumeStatus) { s.Error = &escache.Fault{Code: escache.CodeCephUnavailable} },
			true, []Reason{CephUnavailable}},
		{"cache error", func(s *escache.VolumeStatus) { s.Error = &escache.Fault{Code: escache.CodeCacheError} }, false, []Reason{CacheError}},
		{"no secret of the link", func(s *escache.VolumeStatus) { s.Error = &escache.Fault{Code: escache.CodeSecretMissing} }, false, []Reason{SecretMissing}},
		{"corrupt", func(s *escache.VolumeStatus) { s.Error = &escache.Fault{Code: escache.CodeCacheCorrupt} }, false, []Reason{CacheCorrupt}},
	}
	for _, row := range rows {
		s := healthy()
		row.change(&s)
		var got []Reason
		for _, f := range Findings(s, row.stalled) {
			got = append(got, f.Reason)
			if f.Message == "" || f.Condition == "" {
				t.Errorf("%s: %+v has no sentence or no condition", row.name, f)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: got %q, want %q", row.name, got, row.want)
		}
	}
}

// Only this proof allows the watch to remove a node from the list of outdated ones.
func TestIsCurrent(t *testing.T) {
	rows := []struct {
		name   string
		change func(s *escache.VolumeStatus)
		want   bool
	}{
		{"connected, both up to date", func(*escache.VolumeStatus) {}, true},
		{"resync runs", func(s *escache.VolumeStatus) { s.Peers[0].ConnectionState = "SyncSource" }, false},
		{"peer inconsistent", func(s *escache.VolumeStatus) { s.Peers[0].DiskState = "Inconsistent" }, false},
		{"peer outdated", func(s *escache.VolumeStatus) { s.Peers[0].DiskState = "Outdated" }, false},
		{"link down, peer's last state up to date", func(s *escache.VolumeStatus) { s.Peers[0].ConnectionState = "WFConnection" }, false},
		{"own disk gone", func(s *escache.VolumeStatus) { s.DiskState = "Diskless" }, false},
		{"frozen", func(s *escache.VolumeStatus) { s.IOSuspended = true }, false},
		{"percent below 100", func(s *escache.VolumeStatus) { s.SyncedPercent = 99.9 }, false},
		{"may go on alone", func(s *escache.VolumeStatus) { s.MayGoOnAlone = true }, false},
		{"another peer", func(s *escache.VolumeStatus) { s.Peers[0].Name = "n3" }, false},
	}
	for _, row := range rows {
		s := healthy()
		row.change(&s)
		if got := IsCurrent(s, "n2"); got != row.want {
			t.Errorf("%s: %v", row.name, got)
		}
	}
}

// While DRBD works out what a peer that is back has missed, the peer answers: it is catching up,
// and not lost. DRBD holds its disk at Consistent or below in these states, so the volume does not
// count as redundant, and the peer's copy not as current.
func TestAPeerThatIsAboutToBeFilledIsNotLost(t *testing.T) {
	for _, link := range []escache.LinkState{escache.LinkStartingSyncS, escache.LinkWFBitMapS, escache.LinkSyncSource, escache.LinkPausedSyncS} {
		for _, disk := range []escache.DiskState{escache.DiskInconsistent, escache.DiskOutdated, escache.DiskConsistent} {
			dirty := int64(1)
			s := escache.VolumeStatus{
				State: escache.StateConnected, Role: escache.RolePrimary, Mode: escache.ModeWriteback, DirtyBytes: &dirty, CacheBytes: 1 << 30,
				DiskState: escache.DiskUpToDate, SyncedPercent: 100, Peers: []escache.Peer{{Name: "n2", ConnectionState: link, DiskState: disk}},
			}
			findings := Findings(s, false)
			if len(findings) != 1 || findings[0].Reason != PeerOutdated || IsRedundant(s) || IsCurrent(s, "n2") {
				t.Errorf("%s, %s: %+v, redundant %v, current %v", link, disk, findings, IsRedundant(s), IsCurrent(s, "n2"))
			}
			if s.Peers[0].ConnectionState = escache.LinkWFReportParams; Findings(s, false)[0].Reason != PeerLost {
				t.Errorf("before the handshake is over the peer has not answered: %+v", Findings(s, false))
			}
		}
	}
}

package authority

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestACopyIsLostOnlyByProof(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) {
		inCache(s)
		s.AttachedNode, s.Outdated = "n1", []string{"n2"}
		s.Hosts = []v1alpha1.ReplicaHost{{Node: "n2", HostID: "its own"}}
	})
	holder := func(link escache.LinkState, disk escache.DiskState) escache.VolumeStatus {
		return escache.VolumeStatus{State: escache.StateConnected, Epoch: 7, Peers: []escache.Peer{{
			Name: "n2", ConnectionState: link, DiskState: disk,
		}}}
	}
	absent := func(change func(*escache.VolumeStatus)) Answer {
		s := escache.VolumeStatus{State: escache.StateAbsent, Node: "n2", HostID: "its own"}
		change(&s)
		return Answer{Status: s}
	}
	failed := func(change func(*escache.VolumeStatus)) Answer {
		return absent(func(s *escache.VolumeStatus) {
			s.State, s.DiskState = escache.StateError, escache.DiskDiskless
			change(s)
		})
	}
	down := holder("WFConnection", escache.DiskOutdated)
	silent := Answer{Err: errors.New("no route")}
	for _, tc := range []struct {
		name   string
		own    Answer
		holder escache.VolumeStatus
		want   CopyLoss
	}{
		{"nobody says anything", silent, down, NoLoss},
		{"the holder sees no disk over the link", silent, holder(escache.LinkConnected, escache.DiskDiskless), DiskLost},
		{"no disk, and no link", silent, holder("WFConnection", escache.DiskDiskless), NoLoss},
		{"a resync runs", silent, holder(escache.LinkSyncSource, escache.DiskInconsistent), NoLoss},
		{"another host's disk", silent, func() escache.VolumeStatus {
			s := holder(escache.LinkConnected, escache.DiskDiskless)
			s.Peers[0].Name = "n3"
			return s
		}(), NoLoss},
		{"the holder's answer is of a later attachment", silent, func() escache.VolumeStatus {
			s := holder(escache.LinkConnected, escache.DiskDiskless)
			s.Epoch = 8
			return s
		}(), NoLoss},
		{"its host says that the disk has failed", failed(func(*escache.VolumeStatus) {}), down, DiskLost},
		{"another machine says so", failed(func(s *escache.VolumeStatus) { s.HostID = "another" }), down, NoLoss},
		{"another host says so", failed(func(s *escache.VolumeStatus) { s.Node = "n3" }), down, NoLoss},
		{"it says so of a later attachment", failed(func(s *escache.VolumeStatus) { s.Epoch = 8 }), down, NoLoss},
		{"the replica is gone", absent(func(*escache.VolumeStatus) {}), down, ReplicaGone},
		{"the host has other disks", absent(func(s *escache.VolumeStatus) { s.HostID = "another" }), down, OtherMachine},
		{"other disks, with a replica", absent(func(s *escache.VolumeStatus) { s.HostID, s.State = "another", escache.StateStandby }), down, NoLoss},
		{"it does not say who it is", absent(func(s *escache.VolumeStatus) { s.HostID = "" }), down, NoLoss},
		{"another host answers", absent(func(s *escache.VolumeStatus) { s.Node = "n3" }), down, NoLoss},
		{"it does not say its name", absent(func(s *escache.VolumeStatus) { s.Node = "" }), down, NoLoss},
		{"the kernel still has the map", absent(func(s *escache.VolumeStatus) { s.ClientAddress = "10.0.0.2:0/1" }), down, NoLoss},
		{"the kernel still has the device", absent(func(s *escache.VolumeStatus) { s.Device = "/dev/escache/p/i" }), down, NoLoss},
		{"its answer has no state", absent(func(s *escache.VolumeStatus) { s.State = "" }), down, NoLoss},
		{"it has the replica", absent(func(s *escache.VolumeStatus) { s.State = escache.StateStandby }), down, NoLoss},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := CopyLossOf(v, "n2", tc.own, Heard(v, "n1", tc.holder, nil)); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	counted := v.DeepCopy()
	counted.Status.Outdated = nil
	own := absent(func(s *escache.VolumeStatus) { s.HostID = "another" })
	if got := CopyLossOf(counted, "n2", own, Heard(counted, "n1", down, nil)); got != NoLoss {
		t.Errorf("a copy that is counted is %q", got)
	}
	if got := CopyLossOf(counted, "n2", failed(func(*escache.VolumeStatus) {}), Heard(counted, "n1", down, nil)); got != NoLoss {
		t.Errorf("a copy that is counted, whose host says that its disk has failed, is %q", got)
	}
	unnamed := v.DeepCopy()
	unnamed.Status.Hosts = nil
	if got := CopyLossOf(unnamed, "n2", own, Heard(unnamed, "n1", down, nil)); got != NoLoss {
		t.Errorf("a copy whose machine is not on record is %q", got)
	}
	// The host was lost after it was chosen and before it had created anything.
	standby := absent(func(s *escache.VolumeStatus) { s.State = escache.StateStandby })
	mapped := absent(func(s *escache.VolumeStatus) { s.ClientAddress = "10.0.0.2:0/1" })
	later := absent(func(s *escache.VolumeStatus) { s.Epoch = 8 })
	for name, c := range map[string]struct {
		lost, substitute string
		own              Answer
		want             CopyLoss
	}{
		"chosen, and lost since":       {"n2", "", own, ReplicaGone},
		"chosen":                       {"n3", "n2", own, NoLoss},
		"another copy is replaced":     {"n3", "", own, NoLoss},
		"lost, and still silent":       {"n2", "", silent, NoLoss},
		"lost, and it has a copy":      {"n2", "", standby, NoLoss},
		"lost, and it still has a map": {"n2", "", mapped, NoLoss},
		"lost, and of a later epoch":   {"n2", "", later, NoLoss},
	} {
		unnamed.Status.Repair = &v1alpha1.ReplicaRepair{Lost: c.lost, Substitute: c.substitute}
		if got := CopyLossOf(unnamed, "n2", c.own, Heard(unnamed, "n1", down, nil)); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestAStandbyIsLostByWhatItsOwnHostSays(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) {
		inCache(s)
		s.Epoch, s.Hosts = 7, []v1alpha1.ReplicaHost{{Node: "n2", HostID: "its own"}}
	})
	own := func(state escache.State, disk escache.DiskState, id string) Answer {
		return Answer{Status: escache.VolumeStatus{State: state, DiskState: disk, Node: "n2", HostID: id, Epoch: 7}}
	}
	later := own(escache.StateStandby, escache.DiskDiskless, "its own")
	later.Status.Epoch = 8
	for _, tc := range []struct {
		name string
		own  Answer
		want CopyLoss
	}{
		{"it is well", own(escache.StateStandby, escache.DiskUpToDate, "its own"), NoLoss},
		{"nobody confirms it", own(escache.StateStandby, escache.DiskConsistent, "its own"), NoLoss},
		{"its disk has failed", own(escache.StateError, escache.DiskDiskless, "its own"), DiskLost},
		{"another machine's disk has failed", own(escache.StateError, escache.DiskDiskless, "another"), NoLoss},
		{"a later attachment's disk has failed", later, NoLoss},
		{"the replica is gone", own(escache.StateAbsent, "", "its own"), ReplicaGone},
		{"the host has other disks", own(escache.StateAbsent, "", "another"), OtherMachine},
		{"it does not answer", Answer{Err: errors.New("no route")}, NoLoss},
	} {
		if got := StandbyLossOf(v, "n2", tc.own); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
}

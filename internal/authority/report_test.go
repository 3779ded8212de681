package authority

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// answer is what a host says.
type answer struct {
	Status escache.VolumeStatus
	Err    error
}

func (a answer) heard(v *v1alpha1.CacheVolume, node string) Report {
	return Heard(v, node, a.Status, a.Err)
}

// heardOf is what is known from answers, by node.
func heardOf(v *v1alpha1.CacheVolume, answers map[string]answer) map[string]Report {
	out := map[string]Report{}
	for node, a := range answers {
		out[node] = a.heard(v, node)
	}
	return out
}

func TestWhatIsBelieved(t *testing.T) {
	recorded := func(s *v1alpha1.CacheVolumeStatus) {
		inCache(s)
		s.Hosts = []v1alpha1.ReplicaHost{{Node: "n1", HostID: "disks-1"}}
	}
	unrecorded := inCache
	of := func(node, hostID string, change func(*escache.VolumeStatus)) answer {
		a := standby(new(int64(0)))
		a.Status.Node, a.Status.HostID = node, hostID
		if change != nil {
			change(&a.Status)
		}
		return a
	}
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		answer answer
		doubt  error // nil: it is believed
	}{
		{"the host on record", recorded, of("n1", "disks-1", nil), nil},
		{"another machine of the same name", recorded, of("n1", "disks-9", nil), errOtherHost},
		{"another host at its address", recorded, of("n2", "disks-1", nil), errOtherHost},
		{"another host at its address, no identity on record", unrecorded, of("n2", "disks-2", nil), errOtherHost},
		{"an escached that gives no identity", recorded, of("", "", nil), errOtherHost},
		{"laid before identities were recorded", unrecorded, of("n1", "disks-1", nil), nil},
		{"an earlier attachment", recorded, of("n1", "disks-1", func(s *escache.VolumeStatus) { s.Epoch = 1 }), nil},
		{"a later attachment", recorded, of("n1", "disks-1", func(s *escache.VolumeStatus) { s.Epoch = 99 }), ErrRecordBehind},
		{"no replica", recorded, of("n1", "disks-1", func(s *escache.VolumeStatus) { s.State = escache.StateAbsent }), errLost},
		{"no replica, and the truth is in Ceph", func(s *v1alpha1.CacheVolumeStatus) { recorded(s); s.Authority = v1alpha1.AuthorityCeph },
			of("n1", "disks-1", func(s *escache.VolumeStatus) { s.State = escache.StateAbsent }), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			report := tc.answer.heard(v, "n1")
			status, doubt := report.Status()
			if !errors.Is(doubt, tc.doubt) || (doubt == nil) != (tc.doubt == nil) {
				t.Fatalf("got %v", doubt)
			}
			if doubt == nil && status.State != tc.answer.Status.State {
				t.Errorf("status %+v", status)
			}
			if doubt != nil && (!report.connected() || report.clean() || report.current() || report.usable()) {
				t.Error("something is concluded from an answer that is not believed")
			}
		})
	}
	if _, err := (Report{}).Status(); err == nil {
		t.Error("a host that was not asked is believed")
	}
}

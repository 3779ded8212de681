package authority

import (
	"errors"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// trimming is attached to n3, which has no replica, so that it is trimmed.
func trimming(s *v1alpha1.CacheVolumeStatus) {
	s.Authority, s.AttachedNode, s.Outdated, s.FlushEpoch = v1alpha1.AuthorityCeph, "n3", []string{"n1", "n2"}, s.Epoch
	s.Uncached = &v1alpha1.UncachedAttachment{Epoch: s.Epoch, HostID: "three"}
}

func TestWhoMayTrim(t *testing.T) {
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		node    string
		refusal string // "": it may
	}{
		{"clean", func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, "n3", ""},
		{"clean, all copies old", func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = []string{"n1", "n2"} }, "n3", ""},
		{"dirty", inCache, "n3", "written back first"},
		{"a host with a replica", func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, "n1", "has a replica"},
		{"a host of another group", func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }, "n9", "not in the volume's group"},
		{"attached", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }, "n3", "attached to node n1"},
		{"attached, and all is in Ceph", drained, "n3", "attached to node n1"},
		{"being written back", flushing("n1"), "n3", "attached to node n1"},
		{"attached outside the group", outside, "n3", "attached to node n9"},
		{"being trimmed", trimming, "n3", "attached to node n3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			plan, err := AttachToTrim(volume(tc.status), group, tc.node)
			if tc.refusal != "" {
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refusal) {
					t.Errorf("got %+v, %v", plan, err)
				}
				return
			}
			if err != nil || text(plan) != "uncached 8" {
				t.Errorf("got %q, %v", text(plan), err)
			}
		})
	}
}

// A host with a copy that is in use, or that has seen a later attachment, contradicts a record that says that Ceph has
// everything.
func TestATrimBeginsOnlyIfNoHostContradictsTheRecord(t *testing.T) {
	zero := int64(0)
	own := answer{Status: escache.VolumeStatus{State: escache.StateAbsent, Role: escache.RoleUnknown, HostID: "three"}}
	for name, tc := range map[string]struct {
		own, n1 answer
		refusal error
	}{
		"all agree":               {own, standby(&zero), nil},
		"a copy is in use":        {own, holding(escache.StateConnected), ErrRefused},
		"a later attachment":      {own, answer{Status: escache.VolumeStatus{State: escache.StateStandby, Epoch: 9}}, ErrRecordBehind},
		"the host is silent":      {answer{Err: errors.New("no answer")}, standby(&zero), ErrUnreachable},
		"the host has some of it": {standby(&zero), standby(&zero), ErrUnreachable},
	} {
		v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph })
		plan, err := AttachToTrim(v, group, "n3")
		if err != nil {
			t.Fatal(err)
		}
		plan, err = Confirmed(v, "n3", plan, heardOf(v, map[string]answer{"n3": tc.own, "n1": tc.n1, "n2": standby(&zero)}))
		if !errors.Is(err, tc.refusal) || err == nil && (plan.HostID != "three" || !plan.Uncached) {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
}

// Whoever wants a volume that is being trimmed has the host give it back first, also that host itself.
func TestAVolumeThatIsTrimmedIsTakenFromThatHostFirst(t *testing.T) {
	for _, node := range []string{"n1", "n2", "n3", "n9"} {
		plan, err := Attach(leaver(trimming), group, node)
		if err != nil || text(plan) != "flush n3" {
			t.Errorf("%s: %+v, %v", node, plan, err)
		}
	}
	if plan, err := Detach(volume(trimming), "n3", Report{}, Death{}); err != nil || !plan.Gone {
		t.Errorf("it belongs to no pod, and the detachment of one says %+v, %v", plan, err)
	}
	mapped := escache.VolumeStatus{State: escache.StateConnected, Uncached: true, HostID: "three", ClientAddress: "10.0.0.3:0/1", Epoch: 7}
	gone := escache.VolumeStatus{State: escache.StateAbsent, HostID: "three"}
	other := escache.VolumeStatus{State: escache.StateAbsent, HostID: "another machine"}
	for name, tc := range map[string]struct {
		holder answer
		death  Death
		fence  bool
		err    error
	}{
		"it has given it up":             {answer{Status: gone}, Death{}, false, nil},
		"it has it mapped":               {answer{Status: mapped}, Death{}, false, ErrRefused},
		"it has it mapped, and is dead":  {answer{Status: mapped}, Death{Reason: "tainted"}, true, nil},
		"it is silent":                   {answer{Err: errors.New("no answer")}, Death{}, false, ErrUnreachable},
		"it is silent, and dead":         {answer{Err: errors.New("no answer")}, Death{Reason: "tainted"}, true, nil},
		"another machine answers for it": {answer{Status: other}, Death{}, true, nil},
	} {
		v := volume(trimming)
		plan, err := EndFlush(v, true, heardOf(v, map[string]answer{"n3": tc.holder})["n3"], tc.death)
		if !errors.Is(err, tc.err) || plan.Fence != tc.fence {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
}

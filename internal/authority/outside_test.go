package authority

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// leaver is a volume that may be attached outside its group, n1 to n3.
func leaver(change func(*v1alpha1.CacheVolumeStatus)) *v1alpha1.CacheVolume {
	v := volume(change)
	v.Spec.UncachedFallback = true
	return v
}

// outside is attached to n9 without a cache.
func outside(s *v1alpha1.CacheVolumeStatus) {
	s.Authority, s.AttachedNode, s.Outdated = v1alpha1.AuthorityCeph, "n9", []string{"n1", "n2"}
	s.Uncached = &v1alpha1.UncachedAttachment{Epoch: 7, HostID: "nine"}
}

func TestAttachOutsideTheGroup(t *testing.T) {
	for _, tc := range []struct {
		name    string
		v       *v1alpha1.CacheVolume
		node    string
		want    string // what the plan is; empty: none
		refusal string
	}{
		{"never attached", leaver(func(*v1alpha1.CacheVolumeStatus) {}), "n9", "uncached 8", ""},
		{"clean", leaver(func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }), "n9", "uncached 8", ""},
		{"clean, all copies old", leaver(func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = []string{"n1", "n2"} }), "n9", "uncached 8", ""},
		{"dirty", leaver(inCache), "n9", "flush n1 n2", ""},
		{"dirty, one copy", leaver(func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n1"} }), "n9", "flush n2", ""},
		{"dirty, no current copy", leaver(func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n1", "n2"} }), "n9", "",
			"no current replica left"},
		{"being written back", leaver(flushing("n1")), "n9", "flush n1", ""},
		{"attached in the group", leaver(func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }), "n9", "", "attached to node n1"},
		{"drained, attached in the group", leaver(drained), "n9", "", "attached to node n1"},
		{"again", leaver(outside), "n9", "held uncached 7", ""},
		{"again, and not allowed any more", volume(outside), "n9", "held uncached 7", ""},
		{"another node outside", leaver(outside), "n8", "", "attached to node n9"},
		{"a node of the group", leaver(outside), "n1", "", "attached to node n9"},
		{"not allowed", volume(func(*v1alpha1.CacheVolumeStatus) {}), "n9", "", "not in the volume's group"},
		{"a node that has left the group with its replica", leaver(func(s *v1alpha1.CacheVolumeStatus) {}), "n2", "cached 8", ""},
		{"the holder has left the group", leaver(func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n9" }), "n9", "", "not in the volume's group"},
		{"an earlier attachment was without a cache", leaver(func(s *v1alpha1.CacheVolumeStatus) { outside(s); s.AttachedNode, s.Epoch = "n1", 8 }), "n1",
			"held cached 8", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Attach(tc.v, group, tc.node)
			if tc.refusal != "" {
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refusal) {
					t.Errorf("got %+v, %v", got, err)
				}
				return
			}
			if said := text(got); err != nil || said != tc.want {
				t.Errorf("got %q (%+v), %v, want %q", said, got, err, tc.want)
			}
		})
	}
	// A replica stays where it is if its host leaves the group.
	if plan, err := Attach(leaver(func(*v1alpha1.CacheVolumeStatus) {}), []string{"n1", "n3", "n4"}, "n2"); !errors.Is(err, ErrForeignNode) {
		t.Errorf("a host that has left the group with its replica: %+v, %v", plan, err)
	}
	// It has joined the group meanwhile.
	if plan, err := Attach(leaver(outside), append([]string{"n9"}, group...), "n9"); err != nil || text(plan) != "held uncached 7" {
		t.Errorf("a holder that has joined the group: %+v, %v", plan, err)
	}
}

func text(a Attachment) string {
	var words []string
	if len(a.FlushFirst) > 0 {
		return "flush " + strings.Join(a.FlushFirst, " ")
	}
	if a.Held {
		words = append(words, "held")
	}
	kind := "cached"
	if a.Uncached {
		kind = "uncached"
	}
	return strings.Join(append(words, kind, string(rune('0'+a.Epoch))), " ")
}

func TestWhatHostsSayBeforeAnAttachmentOutsideBegins(t *testing.T) {
	zero, some := int64(0), int64(4096)
	absent := answer{Status: escache.VolumeStatus{State: escache.StateAbsent, Role: escache.RoleUnknown, HostID: "nine"}}
	with := func(change func(*escache.VolumeStatus)) answer {
		a := absent
		change(&a.Status)
		return a
	}
	silent := answer{Err: errors.New("no answer")}
	for name, tc := range map[string]struct {
		own, n1, n2 answer
		outdated    []string
		refusal     error
	}{
		"all answer":                     {absent, standby(&zero), standby(&zero), nil, nil},
		"the group is silent":            {absent, silent, silent, nil, nil},
		"nobody knows what is dirty":     {absent, standby(nil), silent, nil, nil},
		"the node is silent":             {silent, standby(&zero), standby(&zero), nil, ErrUnreachable},
		"the node does not say its name": {with(func(s *escache.VolumeStatus) { s.HostID = "" }), silent, silent, nil, ErrUnreachable},
		"the node has a replica":         {with(func(s *escache.VolumeStatus) { s.State = escache.StateStandby }), silent, silent, nil, ErrRefused},
		"the node has a map of no use": {with(func(s *escache.VolumeStatus) { s.State, s.ClientAddress = escache.StateError, "10.0.0.9:0/1" }),
			silent, silent, nil, ErrRefused},
		"the node's map is left from before": {with(func(s *escache.VolumeStatus) {
			s.State, s.Uncached, s.ClientAddress = escache.StateConnected, true, "10.0.0.9:0/1"
		}), silent, silent, nil, nil},
		"a copy that counts is dirty":        {absent, standby(&some), silent, nil, ErrRefused},
		"a copy that does not count is":      {absent, standby(&some), silent, []string{"n1"}, nil},
		"a copy that counts is in use":       {absent, holding(escache.StateConnected), silent, nil, ErrRefused},
		"a host has seen a later attachment": {absent, with(func(s *escache.VolumeStatus) { s.Epoch = 9 }), silent, []string{"n1"}, ErrRecordBehind},
	} {
		v := leaver(func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = tc.outdated })
		plan, err := Attach(v, group, "n9")
		if err != nil {
			t.Fatal(err)
		}
		reports := heardOf(v, map[string]answer{"n9": tc.own, "n1": tc.n1, "n2": tc.n2})
		plan, err = Confirmed(v, "n9", plan, reports)
		if !errors.Is(err, tc.refusal) || err == nil && (plan.HostID != "nine" || !plan.Uncached) {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}
}

func TestDetachFromANodeWithoutACache(t *testing.T) {
	dead := Death{Reason: "tainted"}
	gone := answer{Status: escache.VolumeStatus{State: escache.StateAbsent, Role: escache.RoleUnknown, HostID: "nine"}}
	mapped := answer{Status: escache.VolumeStatus{
		State: escache.StateConnected, Role: escache.RoleUnknown, Uncached: true, HostID: "nine", ClientAddress: "10.0.0.9:0/1", Device: "/dev/x",
	}}
	stray := gone
	stray.Status.ClientAddress = "10.0.0.9:0/2"
	mapping := answer{Status: escache.VolumeStatus{
		State: escache.StateError, Role: escache.RoleUnknown, Uncached: true, HostID: "nine", Device: "/dev/x",
	}}
	stranger := gone
	stranger.Status.HostID = "another"
	unknown := func(s *v1alpha1.CacheVolumeStatus) { outside(s); s.Uncached.HostID = "" }
	for name, tc := range map[string]struct {
		status  func(*v1alpha1.CacheVolumeStatus)
		says    answer
		death   Death
		fence   bool
		refusal error
	}{
		"unmapped":                        {outside, gone, Death{}, false, nil},
		"still mapped":                    {outside, mapped, Death{}, false, ErrRefused},
		"mapped, and given up":            {outside, mapped, dead, true, nil},
		"a map that it does not tell of":  {outside, stray, dead, true, nil},
		"being mapped":                    {outside, mapping, Death{}, false, ErrRefused},
		"being mapped, and given up":      {outside, mapping, dead, true, nil},
		"silent":                          {outside, answer{Err: errors.New("no answer")}, Death{}, false, ErrUnreachable},
		"silent, and given up":            {outside, answer{Err: errors.New("no answer")}, dead, true, nil},
		"another machine answers":         {outside, stranger, Death{}, true, nil},
		"which machine had it is unknown": {unknown, gone, Death{}, true, nil},
	} {
		v := leaver(tc.status)
		d, err := Detach(v, "n9", tc.says.heard(v, "n9"), tc.death)
		if !errors.Is(err, tc.refusal) || err == nil && (d.Fence != tc.fence || d.Gone) {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

func TestCopiesOfAVolumeThatIsAttachedOutsideDoNotCount(t *testing.T) {
	v := leaver(outside)
	if got := Current(v); len(got) > 0 {
		t.Errorf("current: %v", got)
	}
	if _, err := MayGoOnAlone(v, escache.OutdatePeerRequest{Node: "n1", Peer: "n2", Epoch: 7}, time.Now()); err == nil {
		t.Error("a host of the group may go on alone")
	}
	for _, node := range []string{"n1", "n2"} {
		if MayStage(v, node, 7) == nil {
			t.Errorf("%s may stage", node)
		}
	}
	if err := MayStage(v, "n9", 7); err != nil {
		t.Error(err)
	}
	v.Status.AttachedNode, v.Status.Epoch = "n1", 8 // attached in the group again, and not created again yet
	if !errors.Is(MayStage(v, "n1", 8), ErrOutdated) {
		t.Error("an old copy may be used")
	}
	if plan, err := Attach(v, group, "n1"); err != nil || len(plan.Renew) != 2 {
		t.Errorf("%+v, %v", plan, err)
	}
}

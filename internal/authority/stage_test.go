package authority

import (
	"errors"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestMayStage(t *testing.T) {
	attached := func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n1" }
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		node    string
		epoch   int64
		refusal string // what the error says; empty: none
	}{
		{"attached here, in this epoch", attached, "n1", 7, ""},
		{"attached nowhere", func(*v1alpha1.CacheVolumeStatus) {}, "n1", 7, "attached to no node"},
		{"attached elsewhere", attached, "n2", 7, "attached to node n1"},
		{"an earlier attachment", attached, "n1", 6, "is in epoch 7"},
		{"an attachment to come", attached, "n1", 8, "is in epoch 7"},
		{"the peer is outdated", func(s *v1alpha1.CacheVolumeStatus) { attached(s); s.Outdated = []string{"n2"} }, "n1", 7, ""},
		{"outdated itself", func(s *v1alpha1.CacheVolumeStatus) { attached(s); s.Outdated = []string{"n1"} }, "n1", 7, "on record as outdated"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := MayStage(volume(tc.status), tc.node, tc.epoch)
			if tc.refusal == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refusal) {
				t.Fatalf("got %v, want a refusal that says %q", err, tc.refusal)
			}
			if outdated := tc.name == "outdated itself"; errors.Is(err, ErrOutdated) != outdated {
				t.Errorf("%v is ErrOutdated: %v", err, !outdated)
			}
		})
	}
}

func TestIsSuperseded(t *testing.T) {
	for _, tc := range []struct {
		name     string
		attached string
		epoch    int64 // of the device; the record is in epoch 7
		want     bool
	}{
		{"attached elsewhere in a newer epoch", "n2", 6, true},
		{"detached in a newer epoch", "", 6, true},
		{"attached here anew", "n1", 6, false},
		{"the same epoch", "n2", 7, false},
		{"a record that was read before the device was connected", "n2", 8, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = tc.attached })
			if got := IsSuperseded(v, "n1", tc.epoch); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestADeviceIsGivenUpInTheOldestEpochThatProvesIt: the host has seen that epoch then. A later one would keep its replica from being
// discarded while the volume is given to a node.
func TestADeviceIsGivenUpInTheOldestEpochThatProvesIt(t *testing.T) {
	for name, tc := range map[string]struct{ record, seen, want int64 }{
		"taken over":              {3, 2, 3},
		"taken over twice":        {4, 2, 3},
		"taken over often":        {9, 2, 3},
		"taken by force":          {2, 2, 2},
		"the record was set back": {2, 4, 2},
		"none was seen":           {1, 0, 1},
	} {
		v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.Epoch = tc.record })
		if got := GivenUpIn(v, tc.seen); got != tc.want {
			t.Errorf("%s: epoch %d, want %d", name, got, tc.want)
		}
	}
}

func TestIsTaken(t *testing.T) {
	fenced := []v1alpha1.FencedClient{{Node: "n1", Address: "10.0.0.1:0/1", Epoch: 6}}
	for _, tc := range []struct {
		name             string
		attached, client string
		want             bool
	}{
		{"detached, its client is fenced", "", "10.0.0.1:0/1", true},
		{"attached elsewhere, its client is fenced", "n2", "10.0.0.1:0/1", true},
		{"attached here anew", "n1", "10.0.0.1:0/1", false},
		{"another client is fenced", "", "10.0.0.1:0/2", false},
		{"no client", "", "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode, s.Fenced = tc.attached, fenced })
			if got := IsTaken(v, "n1", tc.client); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestKeepsOut(t *testing.T) {
	linked, lost := escache.Peer{Name: "n2", ConnectionState: escache.LinkConnected}, escache.Peer{Name: "n2", ConnectionState: "WFConnection"}
	primary := escache.VolumeStatus{State: escache.StateConnected, Role: escache.RolePrimary, Peers: []escache.Peer{linked}}
	standby, alone := primary, primary
	standby.Role, alone.Peers = escache.RoleSecondary, []escache.Peer{lost}
	for name, tc := range map[string]struct {
		report Report
		want   bool
	}{
		"Primary and linked":   {Report{known: true, status: primary}, true},
		"a standby":            {Report{known: true, status: standby}, false},
		"without its link":     {Report{known: true, status: alone}, false},
		"nothing is known":     {Report{status: primary}, false},
		"nobody was asked yet": {Report{}, false},
	} {
		if got := KeepsOut(tc.report); got != tc.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}

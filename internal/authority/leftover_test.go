package authority

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestWhoIsAskedToGiveUpALeftoverDevice(t *testing.T) {
	clean := func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }
	outdated := func(s *v1alpha1.CacheVolumeStatus) { clean(s); s.Outdated = []string{"n1"} }
	device := func(mode escache.Mode, dirty *int64) answer {
		a := holding(escache.StateConnected)
		a.Status.Mode, a.Status.DirtyBytes = mode, dirty
		return a
	}
	through := device(escache.ModeWritethrough, new(int64(0)))
	mapped, later := standby(nil), standby(nil)
	mapped.Status.ClientAddress, later.Status.Epoch = "10.0.0.1:0/1", 8
	for name, tc := range map[string]struct {
		status func(*v1alpha1.CacheVolumeStatus)
		n1, n2 answer
		want   []string
	}{
		"it writes through":               {clean, through, standby(nil), []string{"n1"}},
		"on the other host":               {clean, standby(nil), through, []string{"n2"}},
		"nobody knows what is dirty":      {clean, device(escache.ModeWritethrough, nil), standby(nil), []string{"n1"}},
		"the image is mapped, no device":  {clean, mapped, standby(nil), []string{"n1"}},
		"no device":                       {clean, standby(new(int64(0))), standby(nil), nil},
		"no answer":                       {clean, answer{Err: errors.New("no route")}, standby(nil), nil},
		"it writes back":                  {clean, device(escache.ModeWriteback, new(int64(0))), standby(nil), nil},
		"it drains":                       {clean, device(escache.ModeWritethrough, new(int64(1))), standby(nil), nil},
		"it is being connected":           {clean, connecting(), standby(nil), nil},
		"it writes back, and is outdated": {outdated, device(escache.ModeWriteback, new(int64(1))), standby(nil), []string{"n1"}},
		"the record was set back":         {clean, through, later, nil},
		"attached":                        {drained, through, standby(nil), nil},
		"the truth is in the cache":       {inCache, through, standby(nil), nil},
	} {
		t.Run(name, func(t *testing.T) {
			v := volume(tc.status)
			reports := heardOf(v, map[string]answer{"n1": tc.n1, "n2": tc.n2, "n3": through})
			if got := Leftovers(v, reports); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestARefusalSaysWhyTheHostKeepsItsDevice(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph })
	reports := heardOf(v, map[string]answer{"n1": holding(escache.StateDraining)})
	reports["n1"] = reports["n1"].Keeping(errors.New("the arbiter is away"))
	if err := Movable(v, reports); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "the arbiter is away") {
		t.Errorf("got %v", err)
	}
}

package authority

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestDiscard(t *testing.T) {
	silent, dead := answer{Err: errors.New("no route")}, Death{Reason: "tainted"}
	absent := answer{Status: escache.VolumeStatus{State: escache.StateAbsent}}
	disk := func(state escache.DiskState) answer {
		r := standby(nil)
		r.Status.DiskState = state
		return r
	}
	fault := func(code escache.Code) answer {
		r := holding(escache.StateError)
		r.Status.DiskState, r.Status.Error = "UpToDate", &escache.Fault{Code: code}
		return r
	}
	old := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n2"}; s.DirtyBytes = 9 }
	attached := func(s *v1alpha1.CacheVolumeStatus) { old(s); s.AttachedNode = "n1" }
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		epoch   int64
		n1, n2  answer
		death   Death
		lost    []string
		refusal string
	}{
		{"the only current copy is silent", old, 7, silent, standby(nil), Death{}, []string{"n1"}, ""},
		{"both are silent", inCache, 7, silent, silent, Death{}, []string{"n1", "n2"}, ""},
		{"no current copy is left", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n1", "n2"} }, 7,
			standby(nil), standby(nil), Death{}, nil, ""},
		{"its host has lost it", old, 7, absent, standby(nil), Death{}, []string{"n1"}, ""},
		{"its disk is dead", old, 7, disk("Diskless"), standby(nil), Death{}, []string{"n1"}, ""},
		{"its cache is corrupt", old, 7, fault(escache.CodeCacheCorrupt), standby(nil), Death{}, []string{"n1"}, ""},
		{"its holder is given up and silent", attached, 7, silent, standby(nil), dead, []string{"n1"}, ""},
		{"it is there", old, 7, standby(nil), standby(nil), Death{}, nil, "n1 answers and has a current copy"},
		{"it is there, and has not seen its peer since it came back", old, 7, disk("Consistent"), standby(nil), Death{}, nil, "n1 answers"},
		{"it is there with an error of Ceph's", old, 7, fault(escache.CodeCephUnavailable), standby(nil), Death{}, nil, "n1 answers"},
		{"the partner is there and current", inCache, 7, silent, standby(nil), Death{}, nil, "n2 answers and has a current copy"},
		{"the holder is silent and lives", attached, 7, silent, standby(nil), Death{}, nil, "Kubernetes has not given up"},
		{"the holder is given up and answers", attached, 7, func() answer { r := holding(escache.StateConnected); r.Status.DiskState = "UpToDate"; return r }(),
			standby(nil), dead, nil, "n1 answers"},
		{"attached since", old, 6, silent, standby(nil), Death{}, nil, "is in epoch 7"},
		{"all is in Ceph", func(*v1alpha1.CacheVolumeStatus) {}, 7, silent, silent, Death{}, nil, "nothing to discard"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			loss, err := Discard(v, tc.epoch, heardOf(v, map[string]answer{"n1": tc.n1, "n2": tc.n2}), tc.death, false)
			if tc.refusal != "" {
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refusal) {
					t.Errorf("got %+v, %v", loss, err)
				}
				return
			}
			if err != nil || !slices.Equal(loss.Nodes, tc.lost) || loss.BytesAtStake != v.Status.DirtyBytes || loss.Reason == "" {
				t.Errorf("got %+v, %v", loss, err)
			}
		})
	}
}

// TestDiscardWithoutAnImage: a copy that answers keeps nobody from giving it up. All else does.
func TestDiscardWithoutAnImage(t *testing.T) {
	dirty := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.DirtyBytes = 9 }
	behind := standby(nil)
	behind.Status.Epoch = 8
	for name, tc := range map[string]struct {
		status  func(*v1alpha1.CacheVolumeStatus)
		n1      answer
		refusal string
	}{
		"both copies answer":   {dirty, standby(nil), ""},
		"it is attached":       {func(s *v1alpha1.CacheVolumeStatus) { dirty(s); s.AttachedNode = "n1" }, standby(nil), "has not given up"},
		"the record is behind": {dirty, behind, "older than the host's disks"},
		"all is in Ceph":       {func(*v1alpha1.CacheVolumeStatus) {}, standby(nil), "nothing to discard"},
	} {
		v := volume(tc.status)
		loss, err := Discard(v, 7, heardOf(v, map[string]answer{"n1": tc.n1, "n2": standby(nil)}), Death{}, true)
		switch {
		case tc.refusal != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.refusal)):
			t.Errorf("%s: got %+v, %v", name, loss, err)
		case tc.refusal == "" && (err != nil || !slices.Equal(loss.Nodes, []string{"n1", "n2"}) || loss.BytesAtStake != 9):
			t.Errorf("%s: got %+v, %v", name, loss, err)
		}
	}
}

func TestWhatIsAtStakeIsSaidWhenNoCurrentCopyCanBeHad(t *testing.T) {
	silent := answer{Err: errors.New("no route")}
	seen := func(string) time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }
	old := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.Outdated = []string{"n2"}; s.DirtyBytes = 4096 }
	v := volume(old)
	got := AtStake(v, heardOf(v, map[string]answer{"n1": silent, "n2": standby(nil)}), seen)
	for _, part := range []string{
		"node n1 has not answered since 2026-11-20T12:00:00Z", "4096 bytes (4Ki)", "at stake, as last reported", "discard-cache v",
	} {
		if !strings.Contains(got, part) {
			t.Errorf("%q does not say %q", got, part)
		}
	}
	if got := AtStake(v, heardOf(v, map[string]answer{"n1": standby(nil), "n2": silent}), seen); got != "" {
		t.Errorf("the current copy answers, and still: %s", got)
	}
	if got := AtStake(v, nil, seen); got != "" {
		t.Errorf("nobody was asked, and still: %s", got)
	}
}

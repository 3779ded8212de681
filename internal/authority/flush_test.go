package authority

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func disk(state escache.DiskState) answer {
	r := standby(nil)
	r.Status.DiskState = state
	return r
}

func TestFlushers(t *testing.T) {
	silent := answer{Err: errors.New("no route")}
	absent := answer{Status: escache.VolumeStatus{State: escache.StateAbsent}}
	later := disk("UpToDate")
	later.Status.Epoch = 99
	for _, tc := range []struct {
		name    string
		current []string
		reports map[string]answer
		want    []string
		err     error
		says    string
	}{
		{"both", []string{"n1", "n2"}, map[string]answer{"n1": disk("UpToDate"), "n2": disk("UpToDate")}, []string{"n1", "n2"}, nil, ""},
		{"the surest first", []string{"n1", "n2"}, map[string]answer{"n1": disk("Consistent"), "n2": disk("UpToDate")},
			[]string{"n2", "n1"}, nil, ""},
		{"a disk in trouble last", []string{"n1", "n2"}, map[string]answer{"n1": disk("Diskless"), "n2": disk("Consistent")},
			[]string{"n2", "n1"}, nil, ""},
		{"one silent", []string{"n1", "n2"}, map[string]answer{"n1": silent, "n2": disk("UpToDate")}, []string{"n2"}, nil, ""},
		{"the only current one silent", []string{"n1"}, map[string]answer{"n1": silent, "n2": disk("UpToDate")}, nil, ErrUnreachable, "n1 does not answer"},
		{"not asked", []string{"n1"}, nil, nil, ErrUnreachable, "nobody has asked it"},
		{"replica lost", []string{"n1"}, map[string]answer{"n1": absent}, nil, ErrRefused, "no replica any more"},
		{"fenced, and not rebooted", []string{"n1"}, map[string]answer{"n1": holding(escache.StateConnected)}, nil, ErrRefused, "rebooted"},
		{"none is current", nil, map[string]answer{"n1": disk("UpToDate"), "n2": disk("UpToDate")}, nil, ErrRefused, "no current replica left"},
		{"a host has seen a later attachment", []string{"n1", "n2"}, map[string]answer{"n1": later, "n2": disk("UpToDate")}, nil,
			ErrRecordBehind, "n1"},
		{"a host that does not count has seen a later attachment", []string{"n2"}, map[string]answer{"n1": later, "n2": disk("UpToDate")}, nil,
			ErrRecordBehind, "n1"},
		{"one fenced, one silent", []string{"n1", "n2"}, map[string]answer{"n1": holding(escache.StateError), "n2": silent}, nil,
			ErrUnreachable, "n2 does not answer"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(inCache)
			v.Status.DirtyBytes = 4096
			got, err := Flushers(v, tc.current, heardOf(v, tc.reports))
			if !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) || !slices.Equal(got, tc.want) {
				t.Fatalf("got %v, %v", got, err)
			}
			told := errors.Is(err, ErrRecordBehind) || len(tc.current) == 0 || err != nil && strings.Contains(err.Error(), "4096 bytes")
			if err != nil && (!strings.Contains(err.Error(), tc.says) || !told) {
				t.Errorf("it says: %v", err)
			}
		})
	}
}

func TestEndFlush(t *testing.T) {
	silent, dead, clean := answer{Err: errors.New("no route")}, Death{Reason: "tainted"}, standby(new(int64(0)))
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		flushed bool
		holder  answer
		death   Death
		want    Detachment
		err     error
	}{
		{"flushed", flushing("n1"), true, clean, Death{}, Detachment{Clean: true}, nil},
		{"flushed, and it does not say what it holds", flushing("n1"), true, standby(nil), Death{}, Detachment{}, nil},
		{"not flushed, and it does not say what it holds", flushing("n1"), false, standby(nil), Death{}, Detachment{}, nil},
		{"not flushed, though it looks clean: its peer may write", flushing("n1"), false, clean, Death{}, Detachment{}, nil},
		{"flushed, after an earlier holder was fenced", func(s *v1alpha1.CacheVolumeStatus) {
			flushing("n1")(s)
			s.Fenced = []v1alpha1.FencedClient{{Node: "n2", Address: "a"}}
		}, true, clean, Death{}, Detachment{Clean: true}, nil},
		{"flushed, and dirty again", flushing("n1"), true, standby(new(int64(1))), Death{}, Detachment{}, nil},
		{"flushed, and on record as outdated", func(s *v1alpha1.CacheVolumeStatus) { flushing("n1")(s); s.Outdated = []string{"n1"} }, true, clean,
			Death{}, Detachment{}, nil},
		{"still connected", flushing("n1"), false, holding(escache.StateConnected), Death{}, Detachment{}, ErrRefused},
		{"silent", flushing("n1"), false, silent, Death{}, Detachment{}, ErrUnreachable},
		{"silent on a node given up", flushing("n1"), false, silent, dead, Detachment{Fence: true, MayCome: true}, nil},
		{"a pod has it", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }, true, clean, dead, Detachment{Gone: true}, nil},
		{"a pod has it since", func(s *v1alpha1.CacheVolumeStatus) { flushing("n1")(s); s.Epoch++ }, true, clean, dead, Detachment{Gone: true}, nil},
		{"nobody has it", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.FlushEpoch = s.Epoch }, true, clean, Death{}, Detachment{Gone: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			got, err := EndFlush(v, tc.flushed, tc.holder.heard(v, "n1"), tc.death)
			if !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) {
				t.Fatalf("got %v", err)
			}
			if got.Reason = ""; got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

package authority

import (
	"errors"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestMovable(t *testing.T) {
	clean := func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }
	silent, absent := answer{Err: errors.New("no route")}, answer{Status: escache.VolumeStatus{State: escache.StateAbsent}}
	later := standby(new(int64(0)))
	later.Status.Epoch = 8
	for _, tc := range []struct {
		name    string
		status  func(*v1alpha1.CacheVolumeStatus)
		reports map[string]answer
		err     error
		says    string
	}{
		{"clean", clean, map[string]answer{"n1": standby(new(int64(0))), "n2": standby(nil)}, nil, ""},
		{"never attached", func(*v1alpha1.CacheVolumeStatus) {}, map[string]answer{"n1": absent, "n2": absent}, nil, ""},
		{"hosts that do not answer", clean, map[string]answer{"n1": silent}, nil, ""},
		{"attached", func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" }, nil, ErrAttached, "n1"},
		{"drained", drained, map[string]answer{"n1": holding(escache.StateDraining)}, ErrAttached, "detached first"},
		{"dirty", inCache, map[string]answer{"n1": standby(new(int64(0))), "n2": standby(nil)}, ErrRefused, "written back first"},
		{"a former holder has the device", clean, map[string]answer{"n1": standby(nil), "n2": holding(escache.StateConnected)}, ErrRefused, "n2"},
		{"the record was set back", clean, map[string]answer{"n1": standby(nil), "n2": later}, ErrRecordBehind, "n2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			err := Movable(v, heardOf(v, tc.reports))
			if !errors.Is(err, tc.err) || (tc.err == nil) != (err == nil) {
				t.Fatalf("got %v, want %v", err, tc.err)
			}
			if err != nil && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("it says: %v", err)
			}
		})
	}
}

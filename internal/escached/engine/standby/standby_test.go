package standby

import (
	"context"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestAScanDoesNotOutliveTheCountOfWhatWasWritten: DRBD counts from zero again when a replica comes up, or gets its disk
// back.
func TestAScanDoesNotOutliveTheCountOfWhatWasWritten(t *testing.T) {
	v := volume.Volume{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "v1"}, Minor: 100, Phase: volume.Ready}
	st := drbd.Status{
		Role: drbd.Secondary, PeerRole: drbd.Secondary, Connection: drbd.Connected, Disk: drbd.UpToDate, PeerDisk: drbd.UpToDate,
	}
	dirty := int64(0)
	s := New(Sources{
		Volumes:  func() []volume.Volume { return []volume.Volume{v} },
		Replicas: func() (drbd.Table, error) { return drbd.Table{Devices: map[int]drbd.Status{v.Minor: st}}, nil },
		Scan:     func(context.Context, volume.Volume) (int64, error) { return dirty, nil },
		ReadTime: func(string) time.Duration { return time.Minute },
		Busy:     func(string) bool { return false },
		Now:      time.Now,
	})
	s.ScanAll(t.Context())
	if got := s.Known(v.Name(), st); got == nil || *got != 0 {
		t.Fatalf("dirty %v", got)
	}
	dirty, st.PeerRole, st.DiskWrittenKiB = 4096, drbd.Primary, 100
	s.ScanAll(t.Context())
	st.PeerRole, st.DiskWrittenKiB = drbd.Secondary, 0
	if got := s.Known(v.Name(), st); got != nil {
		t.Errorf("after a restart of the replica %d bytes are dirty, as before the peer wrote", *got)
	}
	if got := s.Dirty(t.Context(), v, st); got == nil || *got != dirty {
		t.Errorf("dirty %v", got)
	}
}

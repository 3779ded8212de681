package engine

import (
	"reflect"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func TestAResyncIsReportedWithItsRateWhileItRuns(t *testing.T) {
	w, e := inUse(t)
	for what, c := range map[string]struct {
		change func(*drbd.Status)
		want   *escache.Resync
	}{
		"copying": {func(st *drbd.Status) {
			st.Connection, st.ResyncKiBPerSecond, st.ResyncLeft = escache.LinkSyncSource, 2048, 3*time.Second
		}, &escache.Resync{LeftBytes: 6 << 20, BytesPerSecond: 2 << 20, RemainingSeconds: 3}},
		"without a rate DRBD's time is none": {func(st *drbd.Status) {
			st.Connection, st.ResyncLeft = escache.LinkSyncTarget, 99*time.Hour
		}, &escache.Resync{LeftBytes: 6 << 20}},
		"over":         {func(st *drbd.Status) { st.Connection = escache.LinkConnected }, nil},
		"interrupted":  {func(st *drbd.Status) { st.Connection = escache.LinkWFConnection }, nil},
		"being paused": {func(st *drbd.Status) { st.Connection = escache.LinkPausedSyncS }, nil},
	} {
		(*worldDRBD)(w).set(volume.NameOf(ref), func(st *drbd.Status) {
			st.OutOfSyncKiB, st.ResyncKiBPerSecond, st.ResyncLeft = 6<<10, 0, 0
			c.change(st)
		})
		status, err := e.Status(t.Context(), &ref)
		if err != nil {
			t.Fatal(err)
		}
		if got := status.Volumes[0].Resync; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
}

package watch

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// copies is a resync to the peer that has so many percent.
func (w *world) copies(percent float64, left, rate int64) {
	w.status.Peers[0].ConnectionState, w.status.Peers[0].DiskState = "SyncSource", "Inconsistent"
	w.status.SyncedPercent = percent
	w.status.Resync = &escache.Resync{LeftBytes: left, BytesPerSecond: rate}
	if rate > 0 {
		w.status.Resync.RemainingSeconds = left / rate
	}
}

func TestAResyncIsOnRecordWhileItRuns(t *testing.T) {
	w := healthyWorld(t)
	w.copies(12.9, 880<<20, 40<<20)
	begun := w.now
	w.polls(1)
	want := v1alpha1.VolumeResync{
		Node: "n2", Percent: 12, LeftBytes: 880 << 20, BytesPerSecond: 40 << 20, RemainingSeconds: 22, Seen: metav1.NewTime(begun),
	}
	if w.writes != 1 || w.condition(v1alpha1.ConditionSynced) != "False Resyncing" || w.object.Status.Resync == nil {
		t.Fatalf("%d writes, %+v", w.writes, w.object.Status)
	}
	if got := *w.object.Status.Resync; !got.Seen.Equal(&want.Seen) || got.Node != want.Node || got.Percent != want.Percent ||
		got.LeftBytes != want.LeftBytes || got.BytesPerSecond != want.BytesPerSecond || got.RemainingSeconds != want.RemainingSeconds {
		t.Errorf("%+v, want %+v", got, want)
	}
	w.polls(30)
	if w.writes != 1 {
		t.Errorf("%d writes while nothing changes", w.writes)
	}
	for i := range int64(60) { // two minutes
		w.copies(13+float64(i), (870-i)<<20, 40<<20)
		w.polls(1)
	}
	if w.writes < 11 || w.writes > 14 {
		t.Errorf("%d writes in two minutes of a resync", w.writes)
	}
	w.copies(73, 811<<20, 0)
	w.polls(6)
	if got := w.object.Status.Resync; got.BytesPerSecond != 0 || got.RemainingSeconds != 0 || got.LeftBytes != 811<<20 {
		t.Errorf("nothing is copied any more, and the record has %+v", got)
	}
	w.writes = 0
	w.find()
	w.status.SyncedPercent, w.status.Resync = 100, nil
	w.polls(20)
	if w.object.Status.Resync != nil || w.writes != 1 || w.condition(v1alpha1.ConditionSynced) != "True InSync" {
		t.Errorf("after the end: %d writes, %+v", w.writes, w.object.Status)
	}
}

func TestAnEscachedThatKnowsThePercentageOnlyIsEnough(t *testing.T) {
	w := healthyWorld(t)
	w.copies(50, 0, 0)
	w.status.Resync = nil
	w.status.DiskState = escache.DiskInconsistent // this node's own copy lacks something
	w.polls(1)
	if got := w.object.Status.Resync; got == nil || got.Node != "n1" || got.Percent != 50 || got.LeftBytes != 0 {
		t.Errorf("%+v", got)
	}
}

func TestAResyncOfAnEarlierHolderLeavesTheRecord(t *testing.T) {
	stale := v1alpha1.VolumeResync{Node: "n1", Percent: 3, Seen: metav1.NewTime(time.Unix(0, 0))}
	w := newWorld(t)
	w.object.Status.Resync = &stale // of a holder whose conditions are good
	w.polls(1)
	if w.object.Status.Resync != nil {
		t.Errorf("it stays: %+v", w.object.Status.Resync)
	}
	w = healthyWorld(t)
	w.copies(12, 1<<20, 0)
	w.polls(1)
	w.gone = true
	w.object.Status.AttachedNode = ""
	w.touch()
	w.polls(2)
	if w.object.Status.Resync != nil {
		t.Errorf("it outlives the attachment: %+v", w.object.Status.Resync)
	}
}

func TestAFlushThatABeginningResyncCrossesIsTold(t *testing.T) {
	w := healthyWorld(t)
	dirty := int64(4096)
	w.status.DirtyBytes = &dirty
	w.polls(1)
	w.status.DirtyBytes = new(int64)
	w.polls(1) // clean, and it is not time to write numbers yet
	w.copies(12, 1<<20, 0)
	w.polls(8)
	if w.object.Status.DirtyBytes != 0 || w.object.Status.LastFlushTime == nil {
		t.Errorf("%+v", w.object.Status)
	}
}

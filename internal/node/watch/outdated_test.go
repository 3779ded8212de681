package watch

import (
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func TestACopyWhoseDiskHasFailedGoesOnRecord(t *testing.T) {
	t.Run("the peer's, until it is current again", func(t *testing.T) {
		w := healthyWorld(t)
		w.status.Peers[0].DiskState = "Diskless"
		w.polls(1)
		if !slices.Equal(w.object.Status.Outdated, []string{"n2"}) {
			t.Errorf("outdated: %q", w.object.Status.Outdated)
		}
		w.find()
		w.polls(1)
		if len(w.object.Status.Outdated) != 0 {
			t.Errorf("still outdated: %q", w.object.Status.Outdated)
		}
	})
	t.Run("this node's", func(t *testing.T) {
		w := healthyWorld(t)
		w.status.DiskState = "Diskless"
		w.polls(2)
		if !slices.Equal(w.object.Status.Outdated, []string{"n1"}) {
			t.Errorf("outdated: %q", w.object.Status.Outdated)
		}
	})
	t.Run("not the only one that is left", func(t *testing.T) {
		w := healthyWorld(t)
		w.status.DiskState, w.status.Peers[0].DiskState = "Diskless", "Diskless"
		w.polls(2)
		if len(w.object.Status.Outdated) != 0 {
			t.Errorf("outdated: %q", w.object.Status.Outdated)
		}
	})
	onRecord := func(t *testing.T) *world {
		w := healthyWorld(t)
		w.object.Status.Outdated = []string{"n2"}
		w.touch()
		w.watch.Recorded(w.object.DeepCopy())
		w.status.DiskState = "Diskless"
		return w
	}
	t.Run("this node's, in the place of a peer that has everything and was not taken off yet", func(t *testing.T) {
		w := onRecord(t)
		w.polls(2)
		if !slices.Equal(w.object.Status.Outdated, []string{"n1"}) {
			t.Errorf("outdated: %q", w.object.Status.Outdated)
		}
	})
	t.Run("and while DRBD's handler waits for just that", func(t *testing.T) {
		w := onRecord(t)
		w.status.DiskState, w.status.IOSuspended = "Failed", true
		w.polls(2)
		if !slices.Equal(w.object.Status.Outdated, []string{"n1"}) {
			t.Errorf("outdated: %q", w.object.Status.Outdated)
		}
	})
	for state, change := range map[string]func(*world){
		"is catching up": func(w *world) { w.status.Peers[0].DiskState = "Inconsistent" },
		"is lost":        (*world).lose,
		"is lost between the record and the look": func(w *world) { w.beforeStatus = w.lose },
	} {
		t.Run("not this node's while the peer on record "+state, func(t *testing.T) {
			w := onRecord(t)
			change(w)
			w.polls(2)
			if !slices.Equal(w.object.Status.Outdated, []string{"n2"}) {
				t.Errorf("outdated: %q", w.object.Status.Outdated)
			}
		})
	}
	t.Run("not by a node that does not have the volume", func(t *testing.T) {
		w := healthyWorld(t)
		w.status.Peers[0].DiskState = "Diskless"
		w.object.Status.AttachedNode, w.object.Status.Epoch = "n3", 4
		w.touch()
		w.polls(2)
		if len(w.object.Status.Outdated) != 0 {
			t.Errorf("outdated: %q", w.object.Status.Outdated)
		}
	})
}

func TestAPeerLeavesTheListOnlyByAResyncThatWasSeen(t *testing.T) {
	outdated := func(t *testing.T) *world {
		w := healthyWorld(t)
		w.lose()
		w.polls(1)
		w.object.Status.Outdated = []string{"n2"} // as the arbiter does
		w.touch()
		w.watch.Recorded(w.object.DeepCopy())
		w.polls(1)
		return w
	}
	t.Run("resync", func(t *testing.T) {
		w := outdated(t)
		w.status.Peers[0].ConnectionState, w.status.Peers[0].DiskState, w.status.SyncedPercent = "SyncSource", "Inconsistent", 50
		w.polls(5)
		if !slices.Equal(w.object.Status.Outdated, []string{"n2"}) {
			t.Error("off the list during the resync")
		}
		w.find()
		w.status.SyncedPercent = 100
		w.polls(1)
		if len(w.object.Status.Outdated) != 0 {
			t.Errorf("still outdated: %q", w.object.Status.Outdated)
		}
	})
	t.Run("lost again between the record and the look", func(t *testing.T) {
		w := outdated(t)
		w.find()
		w.beforeStatus = w.lose
		w.polls(1)
		if len(w.object.Status.Outdated) != 1 {
			t.Error("off the list although it was lost again")
		}
	})
	t.Run("granted again between the look and the write", func(t *testing.T) {
		w := outdated(t)
		w.find()
		w.beforeStatus = w.touch // the arbiter's grant changes the object; the status was read just before
		w.polls(1)
		if len(w.object.Status.Outdated) != 1 {
			t.Error("off the list in spite of a newer grant")
		}
	})
	t.Run("not while this node may go on alone", func(t *testing.T) {
		w := outdated(t)
		w.find()
		w.status.MayGoOnAlone = true
		w.polls(3)
		if len(w.object.Status.Outdated) != 1 {
			t.Error("off the list before I/O is frozen for it again")
		}
		w.status.MayGoOnAlone = false
		w.polls(1)
		if len(w.object.Status.Outdated) != 0 {
			t.Errorf("still outdated: %q", w.object.Status.Outdated)
		}
	})
	t.Run("this node may go on alone since the record was read", func(t *testing.T) {
		w := outdated(t)
		w.find()
		w.beforeStatus = func() { w.status.MayGoOnAlone = true }
		w.polls(1)
		if len(w.object.Status.Outdated) != 1 {
			t.Error("off the list in spite of the permit")
		}
	})
	t.Run("taken over meanwhile", func(t *testing.T) {
		w := outdated(t)
		w.find()
		w.object.Status.AttachedNode, w.object.Status.Epoch = "n3", 4
		w.touch()
		w.polls(3)
		if len(w.object.Status.Outdated) != 1 {
			t.Error("a node that does not have the volume changed its list")
		}
	})
	t.Run("another epoch", func(t *testing.T) {
		w := outdated(t)
		w.find()
		w.object.Status.Epoch = 4
		w.touch()
		w.polls(3)
		if len(w.object.Status.Outdated) != 1 {
			t.Error("a look of an older epoch changed the list")
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		w := outdated(t)
		w.restart()
		w.find()
		w.polls(1)
		if len(w.object.Status.Outdated) != 0 {
			t.Error("a restarted csi-node does not take it off")
		}
	})
}

// The record was set back, or somebody has edited it: this node has written without its peer since, which the record
// calls current.
func TestACopyThatThisNodeWritesWithoutGoesOnRecord(t *testing.T) {
	alone := func(t *testing.T) *world {
		t.Helper()
		w := healthyWorld(t)
		w.status.Peers[0].ConnectionState, w.status.Peers[0].DiskState, w.status.MayGoOnAlone = "WFConnection", "Outdated", true
		return w
	}
	for name, tc := range map[string]struct {
		change func(w *world)
		want   []string
	}{
		"it goes on alone":                        {func(*world) {}, []string{"n2"}},
		"it has not asked yet":                    {func(w *world) { w.status.Peers[0].DiskState = "DUnknown" }, nil},
		"its I/O waits for the answer":            {func(w *world) { w.status.IOSuspended = true }, nil},
		"its own disk has failed":                 {func(w *world) { w.status.DiskState = "Diskless" }, nil},
		"the device is of another attachment":     {func(w *world) { w.status.Epoch = 2 }, nil},
		"another node has the volume meanwhile":   {func(w *world) { w.object.Status.AttachedNode = "n2"; w.touch() }, nil},
		"its own copy is on record as outdated":   {func(w *world) { w.object.Status.Outdated = []string{"n1"}; w.touch() }, []string{"n1"}},
		"the peer is linked, and asks for a copy": {func(w *world) { w.status.Peers[0].ConnectionState = "SyncSource" }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := alone(t)
			tc.change(w)
			w.polls(2)
			if !slices.Equal(w.object.Status.Outdated, tc.want) {
				t.Errorf("outdated: %q, want %q", w.object.Status.Outdated, tc.want)
			}
		})
	}
}

// The watch has seen the record that a restored etcd no longer has. Nothing changes on the host, so nothing else makes it read that again.
func TestACopyThatTheRecordForgetsGoesOnRecordAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world)
		want   []string
	}{
		"this node goes on without it": {func(w *world) {
			w.lose()
			w.status.Peers[0].DiskState, w.status.MayGoOnAlone = "Outdated", true
		}, []string{"n2"}},
		"its disk has failed":   {func(w *world) { w.status.Peers[0].DiskState, w.status.MayGoOnAlone = "Diskless", true }, []string{"n2"}},
		"it is this node's own": {func(w *world) { w.status.DiskState = "Diskless" }, []string{"n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := healthyWorld(t)
			tc.change(w)
			w.object.Status.Outdated = tc.want
			w.touch()
			w.watch.Recorded(w.object.DeepCopy()) // as the arbiter does
			w.polls(6)
			w.apiDown, w.object.Status.Outdated = true, nil
			w.touch()
			w.polls(10)
			w.apiDown = false
			w.polls(6)
			if !slices.Equal(w.object.Status.Outdated, tc.want) {
				t.Errorf("outdated: %q, want %q", w.object.Status.Outdated, tc.want)
			}
			w.reads = 0
			if w.polls(150); w.reads > 30 {
				t.Errorf("read the record %d times in five minutes", w.reads)
			}
		})
	}
}

func TestARecordOfAnEarlierAttachmentIsNotReadAtEachPoll(t *testing.T) {
	w := healthyWorld(t)
	w.lose()
	w.status.Peers[0].DiskState, w.status.MayGoOnAlone = "Outdated", true
	w.polls(6)
	w.object.Status.Epoch, w.object.Status.Outdated = 2, nil
	w.touch()
	w.reads, w.writes = 0, 0
	if w.polls(150); w.reads > 30 || w.writes > 0 {
		t.Errorf("%d reads and %d writes in five minutes", w.reads, w.writes)
	}
}

// The peer was booted while this node could not reach the API, so csi-node there has put it on record, and this node knows nothing of that.
func TestAPeerThatHasPutItselfOnRecordLeavesTheList(t *testing.T) {
	w := healthyWorld(t)
	w.apiDown = true
	w.lose()
	w.polls(2)
	w.object.Status.Outdated = []string{"n2"}
	w.touch()
	w.find()
	w.polls(10)
	w.apiDown = false
	w.polls(6)
	if len(w.object.Status.Outdated) != 0 {
		t.Errorf("still outdated: %q", w.object.Status.Outdated)
	}
	w.reads = 0
	if w.polls(150); w.reads > 0 {
		t.Errorf("read the record %d times while nothing changed", w.reads)
	}
}

func TestAVolumeWithTwoCopiesIsSeenToBeWhole(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(w *world)
		whole  bool
	}{
		"both copies are written":     {func(*world) {}, true},
		"the peer is not linked":      {func(w *world) { w.status.Peers[0].ConnectionState = "WFConnection" }, false},
		"the peer is being filled":    {func(w *world) { w.status.Peers[0].DiskState = "Inconsistent" }, false},
		"I/O is frozen":               {func(w *world) { w.status.IOSuspended = true }, false},
		"this node's disk has failed": {func(w *world) { w.status.DiskState = "Diskless" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := healthyWorld(t)
			var seen []int64
			w.watch.Whole = func(volume escache.VolumeRef, epoch int64, at time.Time) {
				if volume == w.status.VolumeRef && !at.After(w.now) {
					seen = append(seen, epoch)
				}
			}
			tc.change(w)
			w.polls(1)
			if whole := slices.Equal(seen, []int64{3}); whole != tc.whole {
				t.Errorf("seen %v", seen)
			}
		})
	}
}

package engine

import (
	"errors"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// TestAfterARebootACopyWhoseDiskHadFailedIsFilledByItsPeer: what the peer alone has acknowledged would
// be lost otherwise. If this host was Primary, and its peer has not heard of the failed disk, then
// DRBD takes this copy for the newer one and copies it, although it is marked outdated.
func TestAfterARebootACopyWhoseDiskHadFailedIsFilledByItsPeer(t *testing.T) {
	name := volume.NameOf(ref)
	conflict := &escache.Problem{Code: escache.CodeOutdated, Detail: "the only current one"}
	for what, c := range map[string]struct {
		change   func(w *world)
		made, up bool
		mark     faileddisk.State
	}{
		"nobody is on record":  {func(w *world) { w.record.Outdated = nil }, true, true, faileddisk.Sound},
		"it is on record":      {func(*world) {}, true, true, faileddisk.Sound},
		"the only current one": {func(w *world) { w.record.Outdated, w.tellErr = []string{"n2"}, conflict }, false, true, faileddisk.Sound},
		"the arbiter is away": {func(w *world) {
			w.recordErr = errors.New("connection refused")
			w.tellErr = w.recordErr
		}, false, false, faileddisk.Failed},
	} {
		w := booted(t)
		w.takenOver(3)
		c.change(w)
		if err := w.engine().FailedDisks.Set(name, faileddisk.Failed); err != nil {
			t.Fatal(err)
		}
		before := len(w.steps)
		e := w.restarted()
		made, up := slices.Index(w.steps[before:], "create-md"), slices.Index(w.steps[before:], "attach")
		if (made >= 0) != c.made || (up >= 0) != c.up || up >= 0 && up < made || e.FailedDisks.Get(name) != c.mark {
			t.Errorf("%s: steps %q, mark %q", what, w.steps[before:], e.FailedDisks.Get(name))
		}
		if v, _ := e.Volumes.Get(name); v.Formatted == c.made || v.Joined != c.made {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

// TestADiskThatWorksAgainIsFilledByThePeer is the same without a reboot.
func TestADiskThatWorksAgainIsFilledByThePeer(t *testing.T) {
	name := volume.NameOf(ref)
	w := booted(t)
	w.takenOver(3)
	e := w.restarted()
	if err := e.FailedDisks.Set(name, faileddisk.Recorded); err != nil {
		t.Fatal(err)
	}
	w.minors[100] = linked(drbd.StandAlone, drbd.Diskless)
	before := len(w.steps)
	v, _ := e.Volumes.Get(name)
	e.watcher.Reconnect(t.Context(), v)
	if steps := w.steps[before:]; !slices.Equal(steps, []string{"create-md", "retag", "attach", "adjust"}) {
		t.Errorf("steps %q", steps)
	}
	if v, _ := e.Volumes.Get(name); v.Formatted || !v.Joined {
		t.Errorf("it counts as a copy: %+v", v)
	}
	if mark := e.FailedDisks.Get(name); mark != faileddisk.Sound {
		t.Errorf("mark %q", mark)
	}
}

func TestAFailedDiskThatDRBDsHandlerDidNotReportIsReported(t *testing.T) {
	name := volume.NameOf(ref)
	for what, c := range map[string]struct {
		role   string
		tell   error
		leaves bool
		mark   faileddisk.State
	}{
		"a secondary, on record":           {drbd.Secondary, nil, false, faileddisk.Recorded},
		"a secondary, the arbiter is away": {drbd.Secondary, errors.New("connection refused"), true, faileddisk.Failed},
		"a primary, on record":             {drbd.Primary, nil, false, faileddisk.Recorded},
		"a primary, the arbiter is away":   {drbd.Primary, errors.New("connection refused"), false, faileddisk.Failed},
	} {
		w := booted(t)
		e := w.restarted()
		w.tellErr = c.tell
		st := linked(drbd.Connected, drbd.Diskless)
		st.Role = c.role
		w.minors[100] = st
		steps := len(w.steps)
		for range 2 {
			e.outdated.CheckDisk(t.Context(), ref)
		}
		if left := slices.Contains(w.steps[steps:], "leave"); left != c.leaves || e.FailedDisks.Get(name) != c.mark {
			t.Errorf("%s: left %v, mark %q", what, left, e.FailedDisks.Get(name))
		}
		want := escache.OutdateSelfRequest{VolumeRef: ref, ImageID: "10ab", Node: "n1", Peer: "n2"}
		if len(w.told) == 0 || w.told[0] != want || c.tell == nil && len(w.told) > 1 {
			t.Errorf("%s: told %+v", what, w.told)
		}
	}
}

// DRBD shows a Secondary without link and disk as one that it does not run. csi-controller replaces the copy only if
// the host says that its disk has failed.
func TestAFailedDiskIsToldWhenDRBDShowsNothingAnyMore(t *testing.T) {
	for mark, told := range map[faileddisk.State]bool{faileddisk.Recorded: true, faileddisk.Failed: true, faileddisk.Sound: false} {
		w := booted(t)
		e := w.restarted()
		if mark != faileddisk.Sound {
			if err := e.FailedDisks.Set(volume.NameOf(ref), mark); err != nil {
				t.Fatal(err)
			}
		}
		delete(w.minors, 100)
		all, err := e.Status(t.Context(), &ref)
		if err != nil || len(all.Volumes) != 1 {
			t.Fatal(all, err)
		}
		s := all.Volumes[0]
		failed := s.DiskState == escache.DiskDiskless && s.Error != nil && s.Error.Code == escache.CodeCacheError
		if failed != told || s.State != escache.StateError {
			t.Errorf("mark %q: state %s, disk %q, error %+v", mark, s.State, s.DiskState, s.Error)
		}
	}
}

// A Primary that is frozen because this copy has left goes on when it comes back.
func TestACopyThatHasLeftComesBackOnlyWhenItIsOnRecord(t *testing.T) {
	w := booted(t)
	e := w.restarted()
	w.tellErr = errors.New("connection refused")
	w.minors[100] = linked(drbd.Connected, drbd.Diskless)
	e.outdated.CheckDisk(t.Context(), ref)
	v, _ := e.Volumes.Get(volume.NameOf(ref))
	e.watcher.Reconnect(t.Context(), v)
	if got := w.minors[100].Connection; got != drbd.StandAlone {
		t.Fatalf("the link is %s", got)
	}
	w.tellErr = nil
	e.outdated.CheckDisk(t.Context(), ref)
	e.watcher.Reconnect(t.Context(), v)
	if got := w.minors[100].Connection; got == drbd.StandAlone {
		t.Fatalf("the link is %s after the report", got)
	}
}

func TestTheMarkGoesWhenTheCopyIsCurrentAgain(t *testing.T) {
	name := volume.NameOf(ref)
	for what, c := range map[string]struct {
		st   drbd.Status
		mark faileddisk.State
	}{
		"resynced":             {linked(drbd.Connected, drbd.UpToDate), faileddisk.Sound},
		"being resynced":       {linked("SyncTarget", drbd.Inconsistent), faileddisk.Recorded},
		"not linked":           {cut(drbd.UpToDate), faileddisk.Recorded},
		"the disk is not back": {linked(drbd.Connected, drbd.Diskless), faileddisk.Recorded},
	} {
		w := booted(t)
		e := w.restarted()
		if err := e.FailedDisks.Set(name, faileddisk.Recorded); err != nil {
			t.Fatal(err)
		}
		w.minors[100] = c.st
		e.outdated.CheckDisk(t.Context(), ref)
		if got := e.FailedDisks.Get(name); got != c.mark || len(w.told) > 0 {
			t.Errorf("%s: mark %q, told %+v", what, got, w.told)
		}
	}
}

// The handler's mark comes between the look at the disk and the removal of the old mark.
func TestTheMarkOfADiskThatFailsAgainStays(t *testing.T) {
	name := volume.NameOf(ref)
	w := booted(t)
	e := w.restarted()
	if err := e.FailedDisks.Set(name, faileddisk.Recorded); err != nil {
		t.Fatal(err)
	}
	w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
	looks := 0
	w.drbdRead = func() {
		if looks++; looks == 2 { // the first look decides whether there is anything to do
			w.minors[100] = linked(drbd.Connected, drbd.Diskless)
		}
	}
	e.outdated.CheckDisk(t.Context(), ref)
	if got := e.FailedDisks.Get(name); looks < 2 || got != faileddisk.Failed {
		t.Errorf("after %d looks the mark is %q", looks, got)
	}
}

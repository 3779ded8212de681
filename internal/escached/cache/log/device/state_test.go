package device

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

func TestWhatIsNotInTheLogYetIsDirty(t *testing.T) {
	d, gate := openSlow(t)
	must(t, errors.Join(d.Write(1, block(1)), d.Write(2, block(1))))
	if s := d.State(); s.Dirty != 2 || s.Log.Dirty != 0 {
		t.Errorf("before a flush: %+v", s)
	}
	flushed := make(chan error)
	go func() { flushed <- d.Flush() }()
	<-gate.begun
	must(t, d.Write(3, block(1)))
	if s := d.State(); s.Dirty != 3 || s.Log.Dirty != 0 {
		t.Errorf("during a flush: %+v", s)
	}
	gate.goOn <- struct{}{}
	must(t, <-flushed)
	if s := d.State(); s.Dirty != 3 || s.Log.Dirty != 2 {
		t.Errorf("after it: %+v", s)
	}
}

func TestTheStateTellsOfReadsRecordsAndWriteBack(t *testing.T) {
	d, _, origin := start(t)
	must(t, errors.Join(d.Write(1, block(1)), d.Write(2, block(1)), d.Flush()))
	must(t, errors.Join(d.Write(2, block(2)), d.Write(3, block(2)), d.Flush()))
	read(t, d, 3)
	read(t, d, 9)
	s := d.State()
	if s.Reads != 2 || s.Hits != 1 || s.Log.Counters.Records != 2 || s.Log.Counters.Blocks != 6 || s.Log.Counters.OverwrittenBlocks != 1 {
		t.Errorf("%+v", s)
	}
	if s.Log.Live != s.Log.Used || s.Log.Live != 6 || s.Log.IndexBytes == 0 {
		t.Errorf("before write-back %+v", s.Log)
	}
	must(t, d.WriteBack(t.Context()))
	if s = d.State(); s.Log.Live != 0 || s.Log.Used != 0 || s.Log.Noted != s.Log.Tail || s.Brought != 3 || s.Bringing != 0 || s.Dirty != 0 {
		t.Errorf("after write-back %+v", s)
	}
	must(t, d.Release())
	if s = d.State(); s.Log.Used != 0 {
		t.Errorf("after Release %d blocks are used", s.Log.Used)
	}
	origin.refuse(true)
	must(t, d.Write(1, block(1)))
	if err := d.WriteBack(t.Context()); !errors.Is(err, ErrRefused) || !errors.Is(d.State().Refused, errImage) {
		t.Errorf("%v, %v", err, d.State().Refused)
	}
	d.Close()
	if err := d.Release(); !errors.Is(err, ErrClosed) || !errors.Is(d.State().Failure, ErrClosed) {
		t.Errorf("after Close: %v, %v", err, d.State().Failure)
	}
}

func TestBringUpToLeavesWhatIsLater(t *testing.T) {
	d, _, origin := start(t)
	must(t, d.Write(1, block(1)))
	mark, err := d.Mark(t.Context())
	must(t, err)
	must(t, errors.Join(d.Write(2, block(2)), d.Flush()))
	must(t, d.BringUpTo(t.Context(), mark))
	if origin.has(1) != 1 || origin.has(2) != 0 {
		t.Errorf("the image has %d and %d", origin.has(1), origin.has(2))
	}
	must(t, d.BringUpTo(t.Context(), mark)) // nothing to do
	if d.State().Log.Dirty != 1 {
		t.Errorf("%d blocks are dirty", d.State().Log.Dirty)
	}
}

// Another process opens the volume after that.
func TestWaitReturnsWhenNothingIsWrittenAnyMore(t *testing.T) {
	d, gate := openSlow(t)
	must(t, d.Write(1, block(1)))
	flushed := make(chan error, 1)
	go func() { flushed <- d.Flush() }()
	<-gate.begun
	d.Close()
	waited := make(chan struct{})
	go func() { d.Wait(); close(waited) }()
	select {
	case <-waited:
		t.Error("Wait returns during a write to the log")
	default:
	}
	gate.goOn <- struct{}{}
	<-waited
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.writing {
		t.Error("Wait returns before the log has been written")
	}
}

func TestTheLargestVolumeHas16TiB(t *testing.T) {
	if MaxBytes != 16<<40-record.BlockBytes {
		t.Errorf("%d", int64(MaxBytes))
	}
}

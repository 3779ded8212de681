package ring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

func TestABatchReadsItsNewestWrite(t *testing.T) {
	d := logtest.NewDisk(record.Superblocks+ringBlocks, rand.New(rand.NewPCG(1, 1)))
	if err := Format(d, record.Volume{1}, int64(len(d.Stable))); err != nil {
		t.Fatal(err)
	}
	b := open(t, d).NewBatch()
	b.Write(4, bytes.Repeat([]byte{1}, 3*record.BlockBytes))
	b.Zero(5, 1, false)
	b.Write(6, bytes.Repeat([]byte{2}, record.BlockBytes))
	b.Write(7, bytes.Repeat([]byte{3}, record.BlockBytes)) // grows the extent before it
	if len(b.extents) != 3 {
		t.Errorf("%d extents, want 3: %v", len(b.extents), b.extents)
	}
	p := make([]byte, record.BlockBytes)
	for block, want := range map[uint64]int{3: -1, 4: 1, 5: 0, 6: 2, 7: 3, 8: -1} {
		got := -1
		if b.Read(block, p) {
			got = int(p[0])
		}
		if got != want {
			t.Errorf("block %d reads as %d, want %d", block, got, want)
		}
	}
}

func TestABatchTakesNoMoreThanARecordHolds(t *testing.T) {
	_, l := filled(t)
	b := l.NewBatch()
	data := make([]byte, ringBlocks*record.BlockBytes)
	if n := b.Write(0, data); n != ringBlocks/4-1 {
		t.Errorf("a batch took %d blocks, want %d", n, ringBlocks/4-1)
	}
	if n := b.Write(100, data); n != 0 {
		t.Errorf("a full batch took %d blocks", n)
	}
	b.Reset()
	for i := range uint64(mostZeros) {
		if !b.Zero(2*i, 1, true) {
			t.Fatalf("no room for extent %d", i)
		}
	}
	if b.Zero(5000, 1, true) || !b.Zero(2*mostZeros-1, 1, true) || b.Write(5000, data[:record.BlockBytes]) != 1 {
		t.Error("a batch with enough zeros took more of them, or nothing that makes no more")
	}
	if _, err := l.Append(b); err != nil {
		t.Error(err)
	}
}

// Only the last record can be one without an answer, and only if the origin has all before it.
func TestRecoveryForgetsTheLastRecordIfNobodyHasAnAnswerToIt(t *testing.T) {
	for name, test := range map[string]struct {
		before func(l *Log)
		after  bool
		dirty  uint64
	}{
		"nothing else is dirty":       {before: func(*Log) {}},
		"something before it is":      {before: func(l *Log) { appendZero(t, l, 2, false) }, dirty: 2},
		"the origin has what was":     {before: func(l *Log) { appendZero(t, l, 2, false); bring(t, l) }},
		"one without an answer too":   {before: func(l *Log) { appendZero(t, l, 2, true); bring(t, l) }},
		"it is not the last any more": {before: func(*Log) {}, after: true, dirty: 1},
	} {
		d, l := filled(t)
		test.before(l)
		appendZero(t, l, 4, true)
		if test.after {
			bring(t, l)
			appendZero(t, l, 6, false)
		}
		last := l.State().Sequence
		for range 2 { // the second time there is nothing to forget
			again := open(t, d)
			if got := again.State(); got.Dirty != test.dirty || got.Sequence != last || test.dirty == 0 && got.Live != 0 {
				t.Errorf("%s: after recovery %+v", name, got)
			}
		}
	}
}

func appendZero(t *testing.T, l *Log, block uint64, unanswered bool) {
	t.Helper()
	b := l.NewBatch()
	b.Zero(block, 1, false)
	if unanswered {
		b.Unanswered()
	}
	if _, err := l.Append(b); err != nil {
		t.Fatal(err)
	}
}

// bring says that the origin has everything.
func bring(t *testing.T, l *Log) {
	t.Helper()
	w, err := l.Oldest(100, 100)
	if err != nil {
		t.Fatal(err)
	}
	l.Done(w)
}

// What the origin has is not dirty after a power loss, if one record was written since.
func TestRecoveryKnowsWhatTheOriginHas(t *testing.T) {
	d, l := filled(t, 0, 2, 4, 6)
	w, err := l.Oldest(4, 100)
	if err != nil {
		t.Fatal(err)
	}
	l.Done(w)
	b := l.NewBatch()
	b.Zero(8, 1, true)
	if _, err := l.Append(b); err != nil {
		t.Fatal(err)
	}
	if l.State().Dirty != 5 {
		t.Fatalf("%d blocks are dirty, want 5", l.State().Dirty)
	}
	again := open(t, d)
	if got := again.State(); got.Dirty != 5 || got.Sequence != 5 || got.Generation != 2 {
		t.Errorf("after recovery: %+v", got)
	}
	if w, err := again.Oldest(100, 4); err != nil || len(w.Pieces) != 2 || w.Pieces[0].Start != 4 {
		t.Errorf("write-back up to record 4 gets %+v, %v", w.Pieces, err)
	}
}

// watched is a disk that calls the test before a block of it is read.
type watched struct {
	*logtest.Disk

	at   int64
	read func()
}

func (w *watched) ReadAt(p []byte, at int64) (int, error) {
	if at == w.at && w.read != nil {
		w.read()
	}
	return w.Disk.ReadAt(p, at)
}

// A part of the ring is not overwritten while somebody reads from it. What comes from the origin is not in the ring.
func TestReleaseWaitsForReaders(t *testing.T) {
	d, l := filled(t, 0)
	disk := &watched{Disk: d, at: l.offset(1)}
	l, _, err := Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	released := make(chan error, 1)
	disk.read = func() {
		go func() { released <- l.Release() }()
		time.Sleep(50 * time.Millisecond)
		if len(released) > 0 {
			t.Error("Release did not wait")
		}
	}
	p := AlignedBytes(3 * record.BlockBytes)
	asked := false
	err = l.Read(0, p, func(start uint64, _ []byte) error {
		asked = start == 2
		select {
		case err := <-released:
			return err
		case <-time.After(20 * time.Second):
			return errors.New("Release waits for the origin")
		}
	})
	if err != nil || !asked || p[0] != 1 {
		t.Errorf("block 0 has %d, the origin was asked: %t; %v", p[0], asked, err)
	}
}

// The numbers on a disk that is replaced by an older copy of it, or that got blocks from one.
func TestForeignRecordsAreNotTaken(t *testing.T) {
	for name, change := range map[string]func(h *record.Header){
		"of another volume":            func(h *record.Header) { h.Volume[0]++ },
		"of an earlier generation":     func(h *record.Header) { h.Generation-- },
		"of a later generation":        func(h *record.Header) { h.Generation++ },
		"of another place in the ring": func(h *record.Header) { h.Place.Block += ringBlocks },
		"of another number":            func(h *record.Header) { h.Place.Sequence++ },
		"as it was":                    func(*record.Header) {},
	} {
		d, l := filled(t, 0, 2)
		at := l.offset(3)
		h, err := record.DecodeHeader(d.Stable[at:], l.volume)
		if err != nil {
			t.Fatal(err)
		}
		change(&h)
		if err := h.Encode(d.Stable[at:][:3*record.BlockBytes]); err != nil {
			t.Fatal(err)
		}
		want := uint64(1)
		if name == "as it was" {
			want = 2
		}
		if l, losses, err := Inspect(d); err != nil || len(losses) > 0 || l.State().Sequence != want {
			t.Errorf("%s: record 2 was taken, or more: %v, %v", name, losses, err)
		}
	}
}

func FuzzInspect(f *testing.F) {
	add := func(starts ...uint64) {
		d := logtest.NewDisk(record.Superblocks+record.MinRingBlocks, rand.New(rand.NewPCG(1, 1)))
		if err := Format(d, record.Volume{1}, int64(len(d.Stable))); err != nil {
			f.Fatal(err)
		}
		l, _, err := Open(d)
		if err != nil {
			f.Fatal(err)
		}
		b := l.NewBatch()
		for _, s := range starts {
			b.Reset()
			b.Write(s, make([]byte, record.BlockBytes))
			if _, err := l.Append(b); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(d.Stable, uint(0), byte(0))
		f.Add(d.Stable, uint(2*record.BlockBytes+48), byte(7))
	}
	add()
	add(0, 5, 5)
	f.Fuzz(func(t *testing.T, image []byte, at uint, x byte) {
		if len(image) < record.Superblocks*record.BlockBytes {
			return
		}
		d := &logtest.Disk{Stable: append(bytes.Clone(image), make([]byte, (record.Superblocks+ringBlocks)*record.BlockBytes)...)}
		d.Stable[at%uint(len(d.Stable))] ^= x
		l, _, err := Inspect(d)
		if err != nil {
			return
		}
		// Whatever was found can be written back and opened again, and is the same then.
		first := l.State()
		if l, _, err = Open(d); err != nil || l.State().Dirty != first.Dirty || l.State().Sequence != first.Sequence {
			t.Fatalf("found %+v, and then %+v, %v", first, l, err)
		}
		for range 100 {
			w, err := l.Oldest(8, 1<<62)
			if err != nil {
				t.Fatal(err)
			}
			if w.Empty() {
				break
			}
			l.Done(w)
		}
		if s := l.State(); s.Dirty != 0 {
			t.Fatalf("%d blocks are dirty after write-back", s.Dirty)
		}
	})
}

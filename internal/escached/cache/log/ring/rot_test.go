package ring

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// filled is a log with one record for each of the given starts, each of two blocks.
func filled(t *testing.T, starts ...uint64) (*logtest.Disk, *Log) {
	t.Helper()
	d := logtest.NewDisk(record.Superblocks+ringBlocks, rand.New(rand.NewPCG(1, 1)))
	if err := Format(d, record.Volume{1}, int64(len(d.Stable))); err != nil {
		t.Fatal(err)
	}
	l := open(t, d)
	b := l.NewBatch()
	for i, start := range starts {
		b.Reset()
		b.Write(start, bytes.Repeat([]byte{byte(i + 1)}, 2*record.BlockBytes))
		if _, err := l.Append(b); err != nil {
			t.Fatal(err)
		}
	}
	return d, l
}

func open(t *testing.T, d *logtest.Disk) *Log {
	t.Helper()
	l, losses, err := Open(d)
	if err != nil || len(losses) > 0 {
		t.Fatalf("open: %v, %v", losses, err)
	}
	return l
}

func first(t *testing.T, l *Log, block uint64) byte {
	t.Helper()
	p := AlignedBytes(record.BlockBytes)
	if err := l.Read(block, p, func(_ uint64, p []byte) error { clear(p); return nil }); err != nil {
		t.Fatal(err)
	}
	return p[0]
}

// Records are three blocks long here: the first is at block 0 of the ring.
func damage(d *logtest.Disk, l *Log, block uint64) { d.Stable[l.offset(block)+100] ^= 1 }

func TestDecayInTheMiddleIsTold(t *testing.T) {
	for _, test := range []struct {
		name    string
		blocks  []uint64
		want    []Loss
		read    []byte // of blocks 0, 2, 4
		headers int    // that write-back can read
	}{
		{"data", []uint64{4}, []Loss{{2, 2, []record.Extent{{Start: 2, Blocks: 2, Kind: record.Data}}}}, []byte{1, 0, 3}, 3},
		{"a header", []uint64{3}, []Loss{{First: 2, Last: 2}}, []byte{1, 0, 3}, 2},
		{"two headers", []uint64{0, 3}, []Loss{{First: 1, Last: 2}}, []byte{0, 0, 3}, 1},
		{"data of two", []uint64{1, 4}, []Loss{
			{1, 1, []record.Extent{{Start: 0, Blocks: 2, Kind: record.Data}}},
			{2, 2, []record.Extent{{Start: 2, Blocks: 2, Kind: record.Data}}},
		}, []byte{0, 0, 3}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, l := filled(t, 0, 2, 4)
			for _, block := range test.blocks {
				damage(d, l, block)
			}
			l, losses, err := Inspect(d)
			if err != nil || !slices.EqualFunc(losses, test.want, func(a, b Loss) bool { return a.String() == b.String() }) {
				t.Fatalf("losses %v, want %v; %v", losses, test.want, err)
			}
			for i, want := range test.read {
				if got := first(t, l, uint64(2*i)); got != want {
					t.Errorf("block %d is of record %d, want %d", 2*i, got, want)
				}
			}
			if w, err := l.Oldest(100, 100); err != nil || len(w.headers) != test.headers {
				t.Errorf("write-back gets %d records, want %d; %v", len(w.headers), test.headers, err)
			}
		})
	}
}

func TestDecayHidesNothingOlderOfTheSameBlock(t *testing.T) {
	d, l := filled(t, 0, 0, 4)
	damage(d, l, 4)
	l, losses, err := Inspect(d)
	if err != nil || len(losses) != 1 {
		t.Fatalf("losses %v, %v", losses, err)
	}
	if got := first(t, l, 0); got != 1 {
		t.Errorf("block 0 is of record %d, want 1: what is left of it, beside the told loss", got)
	}
}

func TestALastRecordThatIsIncompleteNeverWas(t *testing.T) {
	d, l := filled(t, 0, 2)
	damage(d, l, 4)
	l, losses, err := Inspect(d)
	if err != nil || len(losses) > 0 || l.State().Sequence != 1 {
		t.Errorf("losses %v, %v, the last record is %d", losses, err, l.State().Sequence)
	}
}

func TestOneDamagedSuperblockDoesNoHarm(t *testing.T) {
	for i := range int64(record.Superblocks) {
		d, _ := filled(t, 0, 2)
		d.Stable[i*record.BlockBytes+40] ^= 1
		l, losses, err := Inspect(d)
		if err != nil || len(losses) > 0 || l.State().Sequence != 2 {
			t.Errorf("without superblock %d: losses %v, %v, %+v", i, losses, err, l.State())
		}
	}
}

func TestADiskWithoutALog(t *testing.T) {
	d := logtest.NewDisk(record.Superblocks+ringBlocks, rand.New(rand.NewPCG(1, 1)))
	if _, _, err := Inspect(d); !errors.Is(err, ErrNoLog) {
		t.Errorf("got %v, want ErrNoLog", err)
	}
	if err := Format(d, record.Volume{1}, 10*record.BlockBytes); err == nil {
		t.Error("a log of ten blocks was made")
	}
}

// Nothing that the origin lacks is overwritten, however full the log is.
func TestAFullLogRefusesRecordsUntilRoomIsReleased(t *testing.T) {
	d, l := filled(t)
	b := l.NewBatch()
	written := byte(0)
	for {
		b.Reset()
		b.Write(uint64(written)%12*2, bytes.Repeat([]byte{written + 1}, 2*record.BlockBytes))
		_, err := l.Append(b)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		written++
	}
	if written != ringBlocks/3 {
		t.Errorf("the ring took %d records of 3 blocks, want %d", written, ringBlocks/3)
	}
	w, err := l.Oldest(1, 100)
	if err != nil || len(w.Pieces) != 0 && w.Pieces[0].Blocks > 2 {
		t.Fatalf("%+v, %v", w, err)
	}
	l.Done(w)
	if _, err := l.Append(b); !errors.Is(err, ErrFull) {
		t.Errorf("a record went over one that recovery would begin with: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append(b); err != nil {
		t.Errorf("after Release: %v", err)
	}
	want := l.State().Dirty
	if l = open(t, d); l.State().Dirty != want {
		t.Errorf("%d dirty blocks after recovery, want %d", l.State().Dirty, want)
	}
}

// Write-back gets each block once, with its newest content, and a block that is written meanwhile stays dirty.
func TestWriteBackLeavesWhatIsNewer(t *testing.T) {
	_, l := filled(t, 0, 2, 0)
	w, err := l.Oldest(100, 100)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Pieces) != 2 || w.Pieces[0].Start != 0 || w.Pieces[1].Start != 2 {
		t.Fatalf("pieces %+v", w.Pieces)
	}
	p := AlignedBytes(2 * record.BlockBytes)
	if err := l.ReadPiece(w.Pieces[0], p); err != nil || p[0] != 3 {
		t.Errorf("block 0 is written back with the content of record %d, %v", p[0], err)
	}
	b := l.NewBatch()
	b.Write(1, bytes.Repeat([]byte{9}, record.BlockBytes))
	if _, err := l.Append(b); err != nil {
		t.Fatal(err)
	}
	l.Done(w)
	if l.State().Dirty != 1 || first(t, l, 1) != 9 {
		t.Errorf("%d dirty blocks, block 1 is of record %d", l.State().Dirty, first(t, l, 1))
	}
}

// What is damaged was told as lost. In its place the image would get something that nobody wrote, and look whole.
func TestDecayIsNotWrittenBack(t *testing.T) {
	for name, collect := range map[string]func(l *Log) (Work, error){
		"the oldest records":  func(l *Log) (Work, error) { return l.Oldest(100, 3) },
		"up to a record":      func(l *Log) (Work, error) { return l.UpTo(3) },
		"the oldest interval": func(l *Log) (Work, error) { return l.Interval(3) },
	} {
		d, l := filled(t, 0, 0, 4)
		damage(d, l, 4)
		l, losses, err := Inspect(d)
		if err != nil || len(losses) != 1 {
			t.Fatalf("losses %v, %v", losses, err)
		}
		w, err := collect(l)
		if err != nil || len(w.Pieces) != 2 {
			t.Fatalf("%s: %+v, %v", name, w.Pieces, err)
		}
		p := AlignedBytes(2 * record.BlockBytes)
		if err := l.ReadPiece(w.Pieces[0], p); err != nil || p[0] != 1 {
			t.Errorf("%s: block 0 is written back with the content of record %d, want 1; %v", name, p[0], err)
		}
	}
}

// told is a log whose first record the origin has, and whose newest one says so. Its records begin at the blocks 0, 3, 6 and 9 of the ring.
func told(t *testing.T) (*logtest.Disk, *Log) {
	t.Helper()
	d, l := filled(t, 0, 2, 4)
	w, err := l.Oldest(1, 1)
	if err != nil || len(w.headers) != 1 {
		t.Fatalf("%+v, %v", w, err)
	}
	l.Done(w)
	b := l.NewBatch()
	b.Write(6, bytes.Repeat([]byte{4}, 2*record.BlockBytes))
	if _, err := l.Append(b); err != nil {
		t.Fatal(err)
	}
	return d, l
}

// What the origin has is not lost. From the tail on, everything that is damaged is, also in a run of headers that begins before it.
func TestOnlyDecayFromTheTailOnIsALoss(t *testing.T) {
	two := record.Extent{Start: 2, Blocks: 2, Kind: record.Data}
	for _, test := range []struct {
		name   string
		blocks []uint64
		want   []Loss
		dirty  uint64
		back   []uint64 // the starts that write-back gets
	}{
		{"nothing", nil, nil, 6, []uint64{2, 4, 6}},
		{"a header before the tail", []uint64{0}, nil, 6, []uint64{2, 4, 6}},
		{"data before the tail", []uint64{1}, nil, 6, []uint64{2, 4, 6}},
		{"the header at the tail", []uint64{3}, []Loss{{First: 2, Last: 2}}, 4, []uint64{4, 6}},
		{"data at the tail", []uint64{4}, []Loss{{2, 2, []record.Extent{two}}}, 4, []uint64{4, 6}},
		{"a header after the tail", []uint64{6}, []Loss{{First: 3, Last: 3}}, 4, []uint64{2, 6}},
		{"headers on both sides", []uint64{0, 3}, []Loss{{First: 2, Last: 2}}, 4, []uint64{4, 6}},
		{"headers on both sides, and one more", []uint64{0, 3, 6}, []Loss{{First: 2, Last: 3}}, 2, []uint64{6}},
		{"data on both sides", []uint64{1, 4}, []Loss{{2, 2, []record.Extent{two}}}, 4, []uint64{4, 6}},
		{"a header before the tail, and data after it", []uint64{0, 4}, []Loss{{2, 2, []record.Extent{two}}}, 4, []uint64{4, 6}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d, l := told(t)
			for _, block := range test.blocks {
				damage(d, l, block)
			}
			// Whoever refuses the losses has opened the log before: the next one must hear of them, too.
			for i, find := range []func(Disk) (*Log, []Loss, error){Inspect, Open, Inspect, Open} {
				l, losses, err := find(d)
				if err != nil || !slices.EqualFunc(losses, test.want, func(a, b Loss) bool { return a.String() == b.String() }) {
					t.Fatalf("time %d: losses %v, want %v; %v", i, losses, test.want, err)
				}
				if dirty := l.State().Dirty; dirty != test.dirty {
					t.Errorf("time %d: %d blocks are dirty, want %d", i, dirty, test.dirty)
				}
				for name, collect := range map[string]func() (Work, error){
					"the oldest records":  func() (Work, error) { return l.Oldest(100, 4) },
					"up to a record":      func() (Work, error) { return l.UpTo(4) },
					"the oldest interval": func() (Work, error) { return l.Interval(4) },
				} {
					w, err := collect()
					var starts []uint64
					for _, p := range w.Pieces {
						starts = append(starts, p.Start)
					}
					if err != nil || !slices.Equal(starts, test.back) {
						t.Errorf("time %d: %s: write-back gets %v, want %v; %v", i, name, starts, test.back, err)
					}
				}
			}
		})
	}
}

// Once what is left was written back, with leave, nothing is lost any more that anybody could still have.
func TestALossInTheMiddleOfWhichTheTailLiesEndsWithItsWriteBack(t *testing.T) {
	d, l := told(t)
	damage(d, l, 0)
	damage(d, l, 3)
	l, losses, err := Open(d)
	if err != nil || len(losses) != 1 {
		t.Fatalf("losses %v, %v", losses, err)
	}
	bring(t, l)
	if err := l.NoteTail(); err != nil {
		t.Fatal(err)
	}
	if s := open(t, d).State(); s.Dirty != 0 || s.Live != 0 {
		t.Errorf("after write-back: %+v", s)
	}
}

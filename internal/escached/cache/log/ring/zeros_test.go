package ring

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/index"
	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/resident"
)

// logOf has a ring of so many blocks, whose index may have so many ranges of zeros.
func logOf(t *testing.T, blocks int, ranges uint64) (*logtest.Disk, *Log) {
	t.Helper()
	d := logtest.NewDisk(record.Superblocks+blocks, rand.New(rand.NewPCG(3, 4)))
	if err := Format(d, record.Volume{1}, int64(len(d.Stable))); err != nil {
		t.Fatal(err)
	}
	l := open(t, d)
	l.maxRanges = ranges
	return d, l
}

// scatter appends records with `each` trims of one block, none beside another, until n are written or the log is full. It returns how many
// are.
func scatter(t *testing.T, l *Log, each, n int) (written int) {
	t.Helper()
	b := l.NewBatch()
	blocks := rand.New(rand.NewPCG(5, 6)).Perm(n)
	for i, block := range blocks {
		b.zeros = 0 // an earlier version did not count them
		if !b.Zero(uint64(2*block), 1, true) {
			t.Fatal("a batch has no room for a trim")
		}
		if i < n-1 && len(b.extents) < each {
			continue
		}
		_, err := l.Append(b)
		if errors.Is(err, ErrFull) {
			return written
		}
		if err != nil {
			t.Fatal(err)
		}
		written = i + 1
		b.Reset()
	}
	return written
}

// A log of an earlier version can have as many. The time is for people: when each trim moved all others, it was an hour.
func TestAMillionScatteredTrimsAreReadAgain(t *testing.T) {
	const n = 1_000_000
	d, l := logOf(t, 4096, 10*n)
	if got := scatter(t, l, record.MaxExtents, n); got != n {
		t.Fatalf("%d of %d trims had room", got, n)
	}
	again, losses, err := Inspect(d)
	if err != nil || len(losses) > 0 {
		t.Fatal(losses, err)
	}
	s := again.State()
	if s.Dirty != n || s.Ranges != n {
		t.Errorf("%d blocks are dirty, in %d ranges, want %d", s.Dirty, s.Ranges, n)
	}
	t.Logf("%d ranges of zeros are in %d blocks of the log; the index has %d bytes", s.Ranges, s.Live, s.IndexBytes)
}

// Not before the origin has some of them is there room again.
func TestTheLogIsFullWithTooManyRangesOfZeros(t *testing.T) {
	const most = 5000
	_, l := logOf(t, 4096, most)
	first := scatter(t, l, mostZeros, 2*most)
	s := l.State()
	if s.Ranges > most || s.Ranges < most-2*record.MaxExtents || s.Live > 200 || s.Free > s.Ring/10 {
		t.Errorf("after %d trims: %+v", first, s)
	}
	w, err := l.Oldest(1024, 1<<62)
	if err != nil || w.Empty() {
		t.Fatal(w, err)
	}
	l.Done(w)
	if free := l.State().Free; free < s.Free+s.Ring/10 {
		t.Errorf("%d blocks are free after write-back, and %d before", free, s.Free)
	}
	if scatter(t, l, mostZeros, mostZeros) != mostZeros {
		t.Error("there is no room for a record, although the origin has the oldest ones")
	}
}

// A write into zeros makes two ranges of one.
func TestWritesIntoZerosAddRangesToo(t *testing.T) {
	const most = 5000
	_, l := logOf(t, 1<<14, most)
	b := l.NewBatch()
	b.Zero(0, 1<<20, true)
	var err error
	for block, data := uint64(1), make([]byte, record.BlockBytes); err == nil; block += 2 {
		if b.Write(block, data) == 0 {
			_, err = l.Append(b)
			b.Reset()
		}
	}
	if s := l.State(); !errors.Is(err, ErrFull) || s.Ranges > most || s.Ranges < most-2*record.MaxExtents {
		t.Errorf("%v; %+v", err, s)
	}
}

// Nobody ends an interval here. In order, write-back begins with a whole one.
func TestAnIntervalEndsBeforeTheLogIsFullWithRanges(t *testing.T) {
	const most = 5000
	for name, written := range map[string]uint64{"this version": most, "an earlier version": 4 * most} {
		d, l := logOf(t, 4096, written)
		scatter(t, l, record.MaxExtents, 3*most)
		l = open(t, d)
		l.maxRanges = most
		scatter(t, l, mostZeros, most)
		s := l.State()
		if s.Ranges > max(most, min(written, 3*most))+2*record.MaxExtents {
			t.Errorf("%s: %d ranges are more than the log has room for", name, s.Ranges)
		}
		if w, err := l.Interval(1 << 62); err != nil || w.Empty() {
			t.Errorf("%s: write-back has nothing to begin with: %v; %+v", name, err, s)
		}
	}
}

// What write-back reads at once is bounded also if all of it was replaced.
func TestReplacedRecordsAreReadInParts(t *testing.T) {
	_, l := logOf(t, 4096, 1<<20)
	const records = 300
	for range records {
		scatter(t, l, record.MaxExtents, record.MaxExtents)
	}
	parts := 0
	for ; l.State().Live > 0; parts++ {
		w, err := l.Oldest(1024, 1<<62)
		if err != nil || w.Empty() || len(w.headers)*record.MaxExtents > heldMost+record.MaxExtents {
			t.Fatalf("%d records, %v", len(w.headers), err)
		}
		l.Done(w)
	}
	if s := l.State(); parts < 2 || s.Dirty != 0 || s.Ranges != 0 {
		t.Errorf("after %d parts: %+v", parts, s)
	}
}

// The index has its part of what the process may take, and leaves most of what is for everything else.
func TestTheIndexOfAFullLogHasRoomInMemory(t *testing.T) {
	const others = 224 << 20
	for ring := uint64(record.MinRingBlocks); ring <= record.MaxRingBlocks; ring *= 2 {
		data := ring * record.BlockBytes / 400 // see TestMemoryOfRandomBlocks
		bytes := data + maxRangesOf(ring)*index.RangeBytes
		if bound := resident.Bound(int64(ring * record.BlockBytes)); int64(bytes)+others > bound {
			t.Errorf("a ring of %d blocks can have an index of %d bytes; with %d it is above %d", ring, bytes, others, bound)
		}
	}
}

package ring

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

var errSector = errors.New("input/output error")

// counted is a disk that counts reads, and cannot read one block.
type counted struct {
	*logtest.Disk

	reads int
	bad   int64 // its offset; 0: none
}

func (c *counted) ReadAt(p []byte, at int64) (int, error) {
	c.reads++
	if c.bad >= at && c.bad < at+int64(len(p)) && c.bad > 0 {
		return 0, errSector
	}
	return c.Disk.ReadAt(p, at)
}

// shortRecords is a disk with a log of so many records of one block each.
func shortRecords(t *testing.T, records int) *counted {
	t.Helper()
	d := &counted{Disk: logtest.NewDisk(record.Superblocks+4096, rand.New(rand.NewPCG(1, 1)))}
	if err := Format(d, record.Volume{1}, int64(len(d.Stable))); err != nil {
		t.Fatal(err)
	}
	l, _, err := Open(d)
	if err != nil {
		t.Fatal(err)
	}
	b := l.NewBatch()
	for i := range records {
		b.Reset()
		b.Write(uint64(i), make([]byte, record.BlockBytes))
		if _, err := l.Append(b); err != nil {
			t.Fatal(err)
		}
	}
	d.reads = 0
	return d
}

// A log of short records, as a database leaves it, is read as fast as one of long records.
func TestRecoveryOfShortRecordsTakesFewReads(t *testing.T) {
	const records = 1500 // of two blocks each
	d := shortRecords(t, records)
	l, losses, err := Inspect(d)
	if err != nil || len(losses) > 0 || l.State().Sequence != records || l.State().Dirty != records {
		t.Fatalf("found is %+v, lost %v, %v", l.State(), losses, err)
	}
	if d.reads > 10 {
		t.Errorf("%d records took %d reads", records, d.reads)
	}
}

func TestABlockThatCannotBeReadFailsOnlyWhoAsksForIt(t *testing.T) {
	d := shortRecords(t, 3)
	l, _, err := Inspect(d)
	if err != nil {
		t.Fatal(err)
	}
	d.bad = l.offset(5)
	r := l.newReader()
	for _, at := range []uint64{0, 3, 4, 6, 1} {
		b, err := r.blocks(at, 1)
		if err != nil {
			t.Fatalf("block %d: %v", at, err)
		}
		if want := d.Stable[l.offset(at):][:record.BlockBytes]; string(b) != string(want) {
			t.Errorf("block %d has other content", at)
		}
	}
	for _, n := range []int{1, 2} {
		if _, err := r.blocks(uint64(6-n), n); !errors.Is(err, errSector) {
			t.Errorf("%d blocks up to the bad one: %v", n, err)
		}
	}
	if b, err := r.blocks(4, 1); err != nil || string(b) != string(d.Stable[l.offset(4):][:record.BlockBytes]) {
		t.Errorf("after an error: %v", err)
	}
	if _, _, err := Inspect(d); !errors.Is(err, errSector) {
		t.Errorf("recovery of a log with a live record that cannot be read: %v", err)
	}
}

package ring

import (
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// during is a disk that calls the test in the middle of a write.
type during struct {
	Disk

	write func()
}

func (d *during) WriteStable(p []byte, at int64) error {
	if d.write != nil {
		d.write()
	}
	return d.Disk.WriteStable(p, at)
}

// A record that is under way has nothing that was written later. So an interval that ends meanwhile may end with it.
func TestAnIntervalThatEndsDuringAnAppendEndsBeforeTheNextOne(t *testing.T) {
	base, _ := filled(t)
	disk := &during{Disk: base}
	l, _, err := Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	appendZero(t, l, 0, false)
	disk.write = l.EndInterval
	appendZero(t, l, 2, false)
	disk.write = nil
	appendZero(t, l, 4, false)
	appendZero(t, l, 6, false)
	for name, l := range map[string]*Log{"in memory": l, "on the disk": open(t, base)} {
		w, err := l.Interval(100)
		if err != nil || len(w.Pieces) != 2 {
			t.Errorf("%s: the first interval is %+v, %v", name, w.Pieces, err)
		}
	}
}

// Also if that one says nothing, or was lost since.
func TestARecordSaysThatTheOneBeforeEndsAnInterval(t *testing.T) {
	for _, lost := range []bool{false, true} {
		d, _ := filled(t, 0)
		l := open(t, d)
		if w, err := l.Interval(100); err != nil || len(w.Pieces) != 1 {
			t.Errorf("what was found is not an interval: %+v, %v", w.Pieces, err)
		}
		appendZero(t, l, 8, false)
		if l.ended != 1 {
			t.Errorf("record %d ends the last interval, want 1", l.ended)
		}
		if lost {
			clear(d.Stable[l.offset(0):][:record.BlockBytes])
			l, _, err := Inspect(d)
			if err != nil {
				t.Fatal(err)
			}
			if w, err := l.Interval(100); err != nil || !w.Empty() {
				t.Errorf("after the loss: %+v, %v", w, err)
			}
			continue
		}
		l = open(t, d)
		for _, want := range []uint64{0, 8} {
			w, err := l.Interval(100)
			if err != nil || len(w.Pieces) != 1 || w.Pieces[0].Start != want {
				t.Fatalf("the interval is %+v, %v; want block %d", w.Pieces, err, want)
			}
			l.Done(w)
		}
	}
}

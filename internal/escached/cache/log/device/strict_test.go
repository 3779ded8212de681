package device

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// watched is an image that is looked at after each write to it.
type watched struct {
	*image

	after func() error
}

func (w *watched) WriteAt(p []byte, at int64) (int, error) {
	n, err := w.image.WriteAt(p, at)
	return n, errors.Join(err, w.after())
}

func (w *watched) Zero(at, bytes int64, trim bool) error {
	return errors.Join(w.image.Zero(at, bytes, trim), w.after())
}

func (w *watched) content() volume {
	w.mu.Lock()
	defer w.mu.Unlock()
	var v volume
	for b := range v {
		v[b] = binary.LittleEndian.Uint32(w.bytes[b*record.BlockBytes:])
	}
	return v
}

// ordered is a volume whose image is written back in strict order. It loses its power again and again, also between two writes to
// the image.
type ordered struct {
	*life

	t       *testing.T
	watched *watched
	// flushed is what the volume was at each flush. The image was the one at position `at` of it last.
	flushed []volume
	at      int
	seen    int // positions that the image was found at
}

// Whenever write-back pauses, the image is what the volume was at some flush, and never goes back to an earlier one. After
// each single write to the image, it is one of them with a part of what was written before the next one.
func TestInStrictOrderTheImageIsTheVolumeAtAFlush(t *testing.T) {
	seen, lost, wanted := 0, 0, logtest.PowerCuts(t, 1200)
	for seed := uint64(0); lost < wanted; seed++ {
		random := rand.New(rand.NewPCG(seed, 23))
		o := &ordered{t: t, flushed: []volume{{}}}
		o.watched = &watched{image: newImage(), after: o.looksAtIt}
		o.life = &life{disk: logtest.NewDisk(record.Superblocks+ringBlocks, random), random: random, history: []volume{{}}}
		must(t, ring.Format(o.disk, record.Volume{byte(seed)}, int64(len(o.disk.Stable))))
		for range 8 {
			o.disk.PowerOn(1 + random.IntN(60))
			if err := o.live(); !errors.Is(err, logtest.ErrPower) && !errors.Is(err, ErrClosed) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			lost++
		}
		seen += o.seen
	}
	t.Logf("%d power cuts; the image was at %d flushes", lost, seen)
	if seen < 1000 {
		t.Error("write-back did next to nothing")
	}
}

func (o *ordered) live() error {
	log, losses, err := ring.Open(o.disk)
	if err != nil || len(losses) > 0 {
		return errors.Join(err, lossError(losses))
	}
	o.Device = New(log, o.watched)
	o.StrictOrder(true)
	now, err := o.content(o.t)
	if err != nil {
		return err
	}
	if !slices.Contains(o.history, now) {
		o.t.Fatalf("the volume is %v, which it was not after any of the last writes", now)
	}
	// The flush under way may have been complete, and the power loss itself is a moment that its user knows.
	o.flushed = append(o.flushed, now)
	o.history = []volume{now}
	for {
		if err := o.step(); err != nil {
			return err
		}
	}
}

func lossError(losses []ring.Loss) error {
	if len(losses) == 0 {
		return nil
	}
	return errors.New(losses[0].String())
}

func (o *ordered) step() error {
	switch o.random.IntN(12) {
	case 0, 1, 2:
		if _, err := o.Step(); err != nil {
			return err
		}
		o.checkWhole()
	case 3:
		err := o.Hold(o.t.Context(), time.Minute)
		if err == nil {
			o.flush()
			o.checkWhole()
			if got := o.watched.content(); got != o.flushed[len(o.flushed)-1] {
				o.t.Fatalf("a hold left the image at %v", got)
			}
		}
		o.Resume()
		return err
	case 4, 5, 6, 7:
		if err := o.Flush(); err != nil {
			return err
		}
		o.flush()
	default:
		if len(o.history) > 4 { // what a long interval is split into is not at a flush
			return nil
		}
		return o.write()
	}
	return nil
}

// flush notes what the volume is at a flush that has returned.
func (o *ordered) flush() {
	now := o.history[len(o.history)-1]
	o.flushed = append(o.flushed, now)
	o.history = []volume{now}
}

func (o *ordered) checkWhole() {
	o.t.Helper()
	got := o.watched.content()
	for i := o.at; i < len(o.flushed); i++ {
		if o.flushed[i] == got {
			if i > o.at {
				o.seen++
			}
			o.at = i
			return
		}
	}
	o.t.Fatalf("the image is %v, which the volume was not at any flush from the one at which it was %v", got, o.flushed[o.at])
}

// looksAtIt checks the image after one write to it, and loses the power at times.
func (o *ordered) looksAtIt() error {
	got := o.watched.content()
	if !slices.ContainsFunc(o.pairs(), func(p [2]volume) bool { return between(got, p[0], p[1]) }) {
		o.t.Fatalf("the image is %v: neither at a flush nor between two", got)
	}
	if o.random.IntN(30) == 0 {
		o.Close() // whoever waits for the image
		return logtest.ErrPower
	}
	return nil
}

// pairs are two flushes, one after the other. A flush that nobody has seen return yet, or the power loss that stands for it,
// is what the last writes have made.
func (o *ordered) pairs() [][2]volume {
	all := slices.Concat(o.flushed[o.at:], []volume{o.history[len(o.history)-1]})
	pairs := [][2]volume{{all[0], all[0]}}
	for i := range all[1:] {
		pairs = append(pairs, [2]volume{all[i], all[i+1]})
	}
	return pairs
}

// between reports whether each block is as in a or as in b.
func between(got, a, b volume) bool {
	for i := range got {
		if got[i] != a[i] && got[i] != b[i] {
			return false
		}
	}
	return true
}

// Without a flush, records end intervals by themselves before the log is full.
func TestStrictOrderNeedsNoFlush(t *testing.T) {
	d, _, origin := start(t)
	d.StrictOrder(true)
	for i := range 20 * ringBlocks {
		must(t, d.Write(uint64(i%volumeBlocks), block(byte(i))))
	}
	if origin.writes == 0 {
		t.Error("the image got nothing")
	}
	must(t, d.WriteBack(t.Context()))
	for i := 20*ringBlocks - volumeBlocks; i < 20*ringBlocks; i++ {
		if got := origin.has(i % volumeBlocks); got != byte(i) {
			t.Errorf("block %d of the image has %d, want %d", i%volumeBlocks, got, byte(i))
		}
	}
}

// What was written over since is a part of the interval all the same: without it the image would not be what the volume was.
func TestStrictOrderBringsWhatWasWrittenOver(t *testing.T) {
	for _, strict := range []bool{false, true} {
		d, _, origin := start(t)
		d.StrictOrder(strict)
		must(t, d.Write(1, block(1)))
		must(t, d.Write(2, block(1)))
		must(t, d.Flush())
		must(t, d.Write(1, block(2)))
		must(t, d.Flush())
		_, err := d.Step()
		must(t, err)
		if first := origin.has(1); (first == 1) != strict {
			t.Errorf("strict %t: after one step block 1 of the image has %d", strict, first)
		}
	}
}

package ring

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// What was acknowledged is there after each power loss, nothing else is, and no write is there in parts. The power is
// lost in records, superblocks, write-back and recovery.
func TestNothingAcknowledgedIsLostAtPowerCuts(t *testing.T) {
	lost, lives, wanted := 0, 0, logtest.PowerCuts(t, 10_000)
	for seed := uint64(0); lost < wanted; seed++ {
		w := newWorld(seed)
		if err := Format(w.disk, record.Volume{byte(seed), byte(seed >> 8), 1}, int64(len(w.disk.Stable))); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			w.disk.PowerOn(1 + w.random.IntN(25))
			err := w.live(t, seed)
			if !errors.Is(err, logtest.ErrPower) {
				t.Fatalf("seed %d: %v", seed, err)
			}
			lost++
		}
		lives++
	}
	t.Logf("%d power cuts in %d logs", lost, lives)
}

// live opens the log, checks what is in it, and works until the power is lost.
func (w *world) live(t *testing.T, seed uint64) error {
	t.Helper()
	l, losses, err := Open(w.disk)
	if err != nil {
		return err
	}
	if len(losses) > 0 {
		t.Fatalf("seed %d: data is lost: %v", seed, losses)
	}
	got, err := w.read(l)
	if err != nil {
		return err
	}
	// The record that was under way is there as a whole, or not at all.
	switch {
	case bytes.Equal(got, w.before):
		copy(w.now, w.before)
	case bytes.Equal(got, w.now):
		copy(w.before, w.now)
	default:
		t.Fatalf("seed %d: the volume is neither what was acknowledged nor that with the last record:\n%s", seed, differ(got, w.before, w.now))
	}
	w.log = l
	b := l.NewBatch()
	for {
		if err := w.step(b); err != nil {
			return err
		}
	}
}

func (w *world) step(b *Batch) error {
	switch w.random.IntN(8) {
	case 0:
		return w.writeBack(w.random.Uint64N(30))
	case 1:
		return w.log.Release()
	}
	b.Reset()
	copy(w.now, w.before)
	w.write(b)
	if b.Empty() {
		return nil
	}
	_, err := w.log.Append(b)
	if errors.Is(err, ErrFull) {
		copy(w.now, w.before)
		if err := w.writeBack(ringBlocks); err != nil {
			return err
		}
		return w.log.Release()
	}
	if err == nil {
		copy(w.before, w.now)
	}
	return err
}

func differ(got, before, now []byte) string {
	var out bytes.Buffer
	for i := 0; i < len(got); i += record.BlockBytes {
		g, b, n := got[i:i+3], before[i:i+3], now[i:i+3]
		if !bytes.Equal(g, b) || !bytes.Equal(g, n) {
			fmt.Fprintf(&out, "block %d: %x %x %x\n", i/record.BlockBytes, g, b, n)
		}
	}
	return out.String()
}

package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// A process that is killed leaves its area as it is. The batch in it is that of before a write or of after it, wherever the
// process was: whatever of the area changed, the state word changes last.
func TestABatchIsInItsAreaAsItWasAfterAWrite(t *testing.T) {
	_, l := filled(t)
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 5))
		area := AlignedBytes((1 + l.longest()) * record.BlockBytes)
		b, err := l.LoadBatch(area)
		if err != nil || !b.Empty() {
			t.Fatalf("an area of zeros: %v", err)
		}
		for step := range 12 {
			before, content := slices.Clone(area), all(b)
			start, n := random.Uint64N(volumeBlocks), 1+random.IntN(3)
			if random.IntN(3) == 0 {
				b.Zero(start, uint32(n), random.IntN(2) == 0)
			} else {
				b.Write(start, bytes.Repeat([]byte{byte(step + 1)}, n*record.BlockBytes))
			}
			checkArea(t, l, area, all(b))
			// Everything but the state: the process was killed just before.
			killed := AlignedBytes(len(area))
			copy(killed, area)
			copy(killed[stateAt:], before[stateAt:stateAt+8])
			checkArea(t, l, killed, content)
			if random.IntN(6) == 0 {
				b.Reset()
				checkArea(t, l, area, all(b))
			}
		}
	}
}

func checkArea(t *testing.T, l *Log, area []byte, want map[uint64]byte) {
	t.Helper()
	b, err := l.LoadBatch(area)
	if err != nil {
		t.Fatal(err)
	}
	if got := all(b); !maps.Equal(got, want) {
		t.Fatalf("the area has %v, want %v", got, want)
	}
}

// all is what a batch has of each block.
func all(b *Batch) map[uint64]byte {
	m, p := map[uint64]byte{}, make([]byte, record.BlockBytes)
	for at := range uint64(volumeBlocks + 4) {
		if b.Read(at, p) {
			m[at] = p[0]
		}
	}
	return m
}

func TestAreasThatMakeNoSense(t *testing.T) {
	_, l := filled(t)
	good := func() []byte {
		area := AlignedBytes(AreaBytes)
		b, err := l.LoadBatch(area)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(1, make([]byte, 2*record.BlockBytes))
		b.Zero(9, 1, false)
		return area
	}
	for name, change := range map[string]func(area []byte){
		"more extents than fit":   func(a []byte) { binary.LittleEndian.PutUint16(a[stateAt+2:], record.MaxExtents+1) },
		"more blocks than fit":    func(a []byte) { binary.LittleEndian.PutUint16(a[stateAt:], record.MaxBlocks+1) },
		"blocks of no extent":     func(a []byte) { binary.LittleEndian.PutUint16(a[stateAt:], 4) },
		"an extent of no kind":    func(a []byte) { a[entriesAt+7] = 0 },
		"an extent of no blocks":  func(a []byte) { binary.LittleEndian.PutUint32(a[entriesAt+8:], 0) },
		"a last one of no blocks": func(a []byte) { binary.LittleEndian.PutUint32(a[stateAt+4:], 0) },
	} {
		area := good()
		change(area)
		if _, err := l.LoadBatch(area); !errors.Is(err, ErrBadArea) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A batch that was loaded can be written to the log, whatever the area had, or it was refused.
func FuzzLoadBatch(f *testing.F) {
	area := AlignedBytes(AreaBytes)
	l := &Log{ring: ringBlocks}
	b, err := l.LoadBatch(area)
	if err != nil {
		f.Fatal(err)
	}
	b.Write(1, make([]byte, 2*record.BlockBytes))
	b.Zero(9, 1, false)
	b.Write(20, make([]byte, record.BlockBytes))
	f.Add(slices.Clone(area[:entriesAt+3*entry]))
	f.Fuzz(func(t *testing.T, start []byte) {
		clear(area)
		copy(area[:record.BlockBytes], start)
		b, err := l.LoadBatch(area)
		if err != nil {
			return
		}
		h := record.Header{Extents: b.extents}
		if err := h.Encode(b.buffer[:b.used*record.BlockBytes]); err != nil {
			t.Fatalf("%v was loaded, and cannot be written: %v", b.extents, err)
		}
	})
}

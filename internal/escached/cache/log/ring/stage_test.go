package ring

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// marked is a world that knows all contents that each block had, in their order.
type marked struct {
	*world

	contents [volumeBlocks][]uint32
	marks    []promise
}

// promise is a mark, and how many contents each block had.
type promise struct {
	mark uint64
	had  [volumeBlocks]int
}

// Whatever is written meanwhile, and whoever writes back how much: once the origin has the records that Mark has promised it for, no block
// there is older than it was at the mark.
func TestTheOriginHasWhatWasMarked(t *testing.T) {
	kept := 0
	for name, most := range map[string]int{"a stage with its index": stageMost, "a stage whose index is too large": 0} {
		for seed := range uint64(20) {
			m := &marked{world: newWorld(seed)}
			if err := Format(m.disk, record.Volume{byte(seed)}, int64(len(m.disk.Stable))); err != nil {
				t.Fatal(err)
			}
			m.log = open(t, m.disk)
			m.log.stageMost = most
			for range 200 {
				if err := m.step(); err != nil {
					t.Fatalf("%s, seed %d: %v", name, seed, err)
				}
				kept += m.check(t, name, seed)
			}
		}
	}
	if kept < 100 {
		t.Errorf("only %d marks came to their end", kept)
	}
}

func (m *marked) step() error {
	switch m.random.IntN(8) {
	case 0:
		p := promise{mark: m.log.Mark()}
		for b := range p.had {
			p.had[b] = len(m.contents[b])
		}
		m.marks = append(m.marks, p)
	case 1, 2, 3:
		return m.someBack()
	case 4:
		return m.log.Release()
	default:
		return m.append()
	}
	return nil
}

// someBack writes back as the step of somebody who waits for a mark, or for room.
func (m *marked) someBack() error {
	last := uint64(math.MaxUint64)
	if len(m.marks) > 0 && m.random.IntN(2) == 0 {
		last = m.log.Reach(m.marks[m.random.IntN(len(m.marks))].mark)
	}
	err := m.writeBackUpTo(1+m.random.Uint64N(4), last)
	if errors.Is(err, logtest.ErrPower) { // only a part of it is there
		return nil
	}
	return err
}

func (m *marked) append() error {
	b := m.log.NewBatch()
	copy(m.now, m.before)
	m.write(b)
	if b.Empty() {
		return nil
	}
	if _, err := m.log.Append(b); errors.Is(err, ErrFull) {
		return nil
	} else if err != nil {
		return err
	}
	copy(m.before, m.now)
	for b := range m.contents {
		m.contents[b] = append(m.contents[b], content(m.now, b))
	}
	return nil
}

func content(volume []byte, block int) uint32 {
	return binary.LittleEndian.Uint32(volume[block*record.BlockBytes:])
}

// check checks the promises that must be kept by now, and returns how many.
func (m *marked) check(t *testing.T, name string, seed uint64) (kept int) {
	t.Helper()
	m.marks = slices.DeleteFunc(m.marks, func(p promise) bool {
		if m.log.State().Tail <= m.log.Reach(p.mark) {
			return false
		}
		for b, had := range p.had {
			if got := content(m.origin, b); had > 0 && !slices.Contains(m.contents[b][had-1:], got) {
				t.Fatalf("%s, seed %d: block %d of the origin is older than at mark %d", name, seed, b, p.mark)
			}
		}
		kept++
		return true
	})
	return kept
}

// A step stays short if the index of the stage is too large. What has been replaced in the stage, and not since, is left out all the same.
func TestAStageWithoutItsIndexIsBroughtInParts(t *testing.T) {
	_, l := filled(t, 0, 4, 0, 8, 0)
	l.stageMost = 0
	mark := l.Mark()
	parts, blocks := 0, uint64(0)
	for l.State().Tail <= mark {
		w, err := l.Oldest(4, l.Reach(mark))
		if err != nil || w.Empty() || len(w.headers) > 2 {
			t.Fatalf("%d records, %v", len(w.headers), err)
		}
		l.Done(w)
		parts++
		for _, p := range w.Pieces {
			blocks += p.Blocks
		}
	}
	if parts != 3 || blocks != 6 || l.stage != nil {
		t.Errorf("%d parts of %d blocks, and then the stage is %+v", parts, blocks, l.stage)
	}
}

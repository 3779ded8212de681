package index

import (
	"math/rand/v2"
	"testing"
)

// plain is what an index has to behave like.
type plain map[uint64]struct {
	found Found
	place uint32
}

func TestAnIndexIsAMapOfBlocks(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		x, want := &Index{}, plain{}
		span := uint64(1) << (4 + r.IntN(9))
		place := uint32(0)
		for step := range 300 {
			start := r.Uint64N(span)
			blocks := uint32(1 + r.Uint64N(min(span-start, 40)))
			place += 50
			switch r.IntN(6) {
			case 0:
				x.Zero(start, blocks, place)
				want.set(start, blocks, Zeroed, func(uint32) uint32 { return place })
			case 1: // what a record of long ago wrote, which may be hidden since
				old := uint32(1+r.IntN(step+1)) * 50
				x.Clean(start, blocks, old)
				x.CleanZeros(start, blocks, old)
				for i := range blocks {
					b := start + uint64(i)
					if w := want[b]; w.found == InLog && w.place == old+i || w.found == Zeroed && w.place == old {
						delete(want, b)
					}
				}
			case 2:
				if r.IntN(10) == 0 {
					below := place / 2
					x.DropPlaces(func(p uint32) bool { return p < below })
					for b, w := range want {
						if w.place < below {
							delete(want, b)
						}
					}
				}
			default:
				x.Put(start, blocks, place)
				want.set(start, blocks, InLog, func(i uint32) uint32 { return place + i })
			}
			if x.Dirty() != uint64(len(want)) {
				t.Fatalf("seed %d, step %d: %d dirty blocks, want %d", seed, step, x.Dirty(), len(want))
			}
		}
		for b := range span {
			if found, at := x.Get(b); found != want[b].found || at != want[b].place {
				t.Fatalf("seed %d: block %d is %d at %d, want %+v", seed, b, found, at, want[b])
			}
		}
		checkRuns(t, x, span)
	}
}

func (p plain) set(start uint64, blocks uint32, found Found, place func(i uint32) uint32) {
	for i := range blocks {
		w := p[start+uint64(i)]
		w.found, w.place = found, place(i)
		p[start+uint64(i)] = w
	}
}

// checkRuns puts the runs of a range together again.
func checkRuns(t *testing.T, x *Index, span uint64) {
	t.Helper()
	at := uint64(0)
	for run := range x.Runs(0, uint32(span)) {
		if run.Start != at || run.Blocks == 0 {
			t.Fatalf("a run begins at %d and has %d blocks, want %d", run.Start, run.Blocks, at)
		}
		for i := range run.Blocks {
			found, place := x.Get(at)
			if found != run.Found || found == InLog && place != run.Place+i {
				t.Fatalf("block %d is %d at %d, and in run %+v", at, found, place, run)
			}
			at++
		}
	}
	if at != span {
		t.Fatalf("the runs end at %d, want %d", at, span)
	}
}

func TestTheLastBlockCanBeUsed(t *testing.T) {
	x := &Index{}
	x.Put(Blocks-1, 1, 7)
	if found, at := x.Get(Blocks - 1); found != InLog || at != 7 {
		t.Errorf("got %d at %d", found, at)
	}
}

// The aim is 1/400 of the dirty bytes.
func TestMemoryOfRandomBlocks(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x := &Index{}
	worst := 0.0
	for n := range 1 << 20 {
		x.Put(r.Uint64N(Blocks), 1, uint32(n))
		if n > 1<<17 && n%4096 == 0 {
			worst = max(worst, float64(x.Bytes())/float64(x.Dirty()))
		}
	}
	if limit := 4096.0 / 400; worst > limit {
		t.Errorf("the index takes up to %.2f bytes for each dirty block, more than %.2f", worst, limit)
	}
	t.Logf("%.2f bytes for each dirty block at the worst", worst)
}

func BenchmarkPut(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := &Index{}
	for n := 0; b.Loop(); n++ {
		x.Put(r.Uint64N(1<<20), 1, uint32(n))
	}
}

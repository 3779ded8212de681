package index

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// workOf counts what scattered trims cost, and their write-back: nodes of the tree are short, so how often ranges are compared says it all.
func workOf(n int) (compared int) {
	x := &Index{}
	x.zeros.ranges = btree.New(degree, func(a, b zeroRange) bool {
		compared++
		return a.end < b.end
	})
	r := rand.New(rand.NewPCG(1, 2))
	for _, block := range r.Perm(n) {
		x.Zero(uint64(4*block), 3, uint32(block))
	}
	for _, block := range r.Perm(n) {
		x.Put(uint64(4*block+1), 1, uint32(block)) // splits it
	}
	for _, block := range r.Perm(n) {
		x.CleanZeros(uint64(4*block), 3, uint32(block))
	}
	return compared
}

func TestScatteredTrimsCostTheSameWhateverTheirNumber(t *testing.T) {
	small, large := workOf(1<<14), workOf(1<<17)
	t.Logf("each trim compares %d times among 2^14 others, and %d times among 2^17", small>>14, large>>17)
	if large > 8*small*3/2 {
		t.Errorf("8 times as many trims compare %d times as often", large/small)
	}
}

// The worst are ranges in ascending order, which leave nodes half full, and many that are gone.
func TestMemoryOfRangesOfZeros(t *testing.T) {
	const n = 1 << 18
	random := rand.New(rand.NewPCG(1, 2))
	for name, fill := range map[string]func(x *Index){
		"ascending": func(x *Index) {
			for i := range uint64(n) {
				x.Zero(2*i, 1, 1)
			}
		},
		"at random": func(x *Index) {
			for _, i := range random.Perm(n) {
				x.Zero(uint64(2*i), 1, 1)
			}
		},
		"few left of many": func(x *Index) {
			for _, i := range random.Perm(2 * n) {
				x.Zero(uint64(2*i), 1, 1)
			}
			for _, i := range random.Perm(2 * n)[:n] {
				x.CleanZeros(uint64(2*i), 1, 1)
			}
		},
	} {
		before := heapBytes()
		x := &Index{}
		fill(x)
		bytes := int64(heapBytes()) - int64(before)
		t.Logf("%s: %.1f bytes for each range", name, float64(bytes)/n)
		if x.Ranges() != n || bytes > int64(x.Bytes())+1<<17 {
			t.Errorf("%s: %d ranges take %d bytes, and the index says %d", name, x.Ranges(), bytes, x.Bytes())
		}
		runtime.KeepAlive(x)
	}
}

func heapBytes() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

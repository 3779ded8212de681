package histogram

import (
	"math"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

func TestValuesAreCountedInTheRangeThatTheyEnd(t *testing.T) {
	h := New(2, 1, 10, 100)
	for _, v := range []int64{0, 1, 2, 10, 11, 100, 101, 1000} {
		h.Observe(v)
	}
	want := cache.Histogram{Bounds: []float64{2, 20, 200}, Counts: []uint64{2, 2, 2, 2}, Sum: 2450}
	if got := h.Snapshot(); !reflect.DeepEqual(got, want) || got.Count() != 8 {
		t.Errorf("%+v with %d values, not %+v", got, got.Count(), want)
	}
}

func TestLatenciesAreInSeconds(t *testing.T) {
	h := NewLatency()
	h.Observe(int64(50 * time.Microsecond))
	h.Since(time.Now().Add(-time.Hour))
	got := h.Snapshot()
	if got.Bounds[1] != 50e-6 || got.Counts[1] != 1 || got.Counts[len(got.Bounds)] != 1 || math.Abs(got.Sum-3600) > 60 {
		t.Errorf("%+v", got)
	}
}

func TestNothingIsLostOfManyAtATime(t *testing.T) {
	h := New(1, 1)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range int64(1000) {
				h.Observe(i % 3)
			}
		})
	}
	all.Wait()
	if got := h.Snapshot(); got.Counts[0] != 4*667 || got.Counts[1] != 4*333 || got.Sum != 4*999 {
		t.Errorf("%+v", got)
	}
}

func TestObserveTakesNoMemory(t *testing.T) {
	h := NewLatency()
	if n := testing.AllocsPerRun(100, func() { h.Observe(12345) }); n > 0 {
		t.Errorf("it allocates %v times", n)
	}
}

package writecache

import "testing"

func TestMemoryIsThatOfTheKernelsStructures(t *testing.T) {
	e := New(nil, nil, nil)
	for size, blocks := range map[int64]int64{ // of 4096 bytes, with 16 bytes of metadata each
		64 << 20:  16_320,
		1 << 30:   261_123,
		100 << 30: 26_112_398,
		1 << 40:   267_390_960,
	} {
		least, got := blocks*(72+16), e.Memory(size)
		if got < least || got > least+least/100+3*4096 {
			t.Errorf("a disk of %d bytes takes %d bytes of memory; its %d entries alone are %d", size, got, blocks, least)
		}
		if share := float64(got) / float64(size); share < 0.0214 || share > 0.0217 {
			t.Errorf("a disk of %d bytes takes %.2f %% of it as memory", size, 100*share)
		}
	}
	for _, size := range []int64{-1, 0, 4096} {
		if got := e.Memory(size); got != 0 {
			t.Errorf("a disk of %d bytes, on which no block fits, takes %d bytes", size, got)
		}
	}
}

package record

import (
	"bytes"
	"errors"
	"slices"
	"testing"
)

func whole(t *testing.T, h Header) []byte {
	t.Helper()
	p := bytes.Repeat([]byte{5}, h.Blocks()*BlockBytes)
	if err := h.Encode(p); err != nil {
		t.Fatal(err)
	}
	return p
}

var sample = Header{
	Volume: Volume{1, 2}, Generation: 3, Place: Place{Block: 40, Sequence: 5}, Tail: Place{Block: 30, Sequence: 4}, EndsInterval: true,
	Unanswered: true,
	Extents:    []Extent{{0, 1, Data}, {1 << 31, 1<<31 - 1, Trim}, {7, 2, Zero}, {MaxVolumeBlock - 2, 2, Data}},
}

func TestAHeaderComesBack(t *testing.T) {
	p := whole(t, sample)
	h, err := DecodeHeader(p, sample.Volume)
	if err != nil {
		t.Fatal(err)
	}
	if h.Volume != sample.Volume || h.Generation != 3 || h.Place != sample.Place || h.Tail != sample.Tail || !h.EndsInterval || !h.Unanswered ||
		!slices.Equal(h.Extents, sample.Extents) {
		t.Errorf("got %+v", h)
	}
	if bad := h.Damaged(p[BlockBytes:]); bad != nil {
		t.Errorf("extents %v are damaged", bad)
	}
}

func TestEachFlagIsItsOwn(t *testing.T) {
	for flags := range 8 {
		h := sample
		h.EndsInterval, h.Unanswered = flags&1 != 0, flags&2 != 0
		h.StartsInterval = flags&4 != 0
		got, err := DecodeHeader(whole(t, h), h.Volume)
		if err != nil || got.EndsInterval != h.EndsInterval || got.Unanswered != h.Unanswered || got.StartsInterval != h.StartsInterval {
			t.Errorf("flags %b: got %+v, %v", flags, got, err)
		}
	}
}

func TestEachFlippedBitIsFound(t *testing.T) {
	p := whole(t, sample)
	for at := range p {
		p[at] ^= 0x10
		h, err := DecodeHeader(p, sample.Volume)
		if at < BlockBytes && !errors.Is(err, ErrInvalid) {
			t.Fatalf("byte %d of the header may be anything: %v", at, err)
		}
		if want := [][]int{{0}, {3}, {3}}; at >= BlockBytes && !slices.Equal(h.Damaged(p[BlockBytes:]), want[at/BlockBytes-1]) {
			t.Fatalf("byte %d: damaged are %v", at, h.Damaged(p[BlockBytes:]))
		}
		p[at] ^= 0x10
	}
	if h, err := DecodeHeader(p, sample.Volume); err != nil || !slices.Equal(h.Damaged(p[BlockBytes:2*BlockBytes]), []int{3}) {
		t.Errorf("data that is too short: %v, %v", h, err)
	}
}

func TestRecordsThatMakeNoSense(t *testing.T) {
	for name, change := range map[string]func(h *Header, p *[]byte){
		"no blocks":               func(h *Header, _ *[]byte) { h.Extents[1].Blocks = 0 },
		"no kind":                 func(h *Header, _ *[]byte) { h.Extents[1].Kind = 0 },
		"a later kind":            func(h *Header, _ *[]byte) { h.Extents[1].Kind = Trim + 1 },
		"behind the last block":   func(h *Header, _ *[]byte) { h.Extents[3].Start++ },
		"too many extents":        func(h *Header, _ *[]byte) { h.Extents = slices.Repeat([]Extent{{0, 1, Zero}}, MaxExtents+1) },
		"too much data":           func(h *Header, _ *[]byte) { h.Extents = []Extent{{0, MaxBlocks, Data}} },
		"less memory than blocks": func(_ *Header, p *[]byte) { *p = (*p)[BlockBytes:] },
	} {
		h := sample
		h.Extents = slices.Clone(sample.Extents)
		p := make([]byte, h.Blocks()*BlockBytes)
		change(&h, &p)
		if err := h.Encode(p); err == nil {
			t.Errorf("%s: encoded", name)
		}
	}
}

func TestASuperblockComesBack(t *testing.T) {
	s := Superblock{Volume: Volume{9}, Generation: 1, Since: 2, Start: Place{Block: 3, Sequence: 4}, RingBlocks: MinRingBlocks, Memory: Memory{7, 8}}
	b := make([]byte, BlockBytes)
	s.Encode(b)
	if got, err := DecodeSuperblock(b); err != nil || got != s {
		t.Errorf("got %+v, %v", got, err)
	}
	for at := range b {
		b[at] ^= 1
		if _, err := DecodeSuperblock(b); !errors.Is(err, ErrInvalid) {
			t.Fatalf("byte %d may be anything: %v", at, err)
		}
		b[at] ^= 1
	}
	s.RingBlocks = MinRingBlocks - 1
	s.Encode(b)
	if _, err := DecodeSuperblock(b); !errors.Is(err, ErrInvalid) {
		t.Errorf("a ring that is too short: %v", err)
	}
}

func FuzzHeader(f *testing.F) {
	p := make([]byte, sample.Blocks()*BlockBytes)
	if err := sample.Encode(p); err != nil {
		f.Fatal(err)
	}
	f.Add(p[:200])
	f.Fuzz(func(t *testing.T, start []byte) {
		b := make([]byte, BlockBytes)
		copy(b, start)
		clear(b[sumAt : sumAt+4])
		seal(b) // otherwise no input would get behind the checksum
		h, err := DecodeHeader(b, Volume(b[16:32]))
		if err != nil {
			return
		}
		again := make([]byte, h.Blocks()*BlockBytes)
		if err := h.Encode(again); err != nil {
			t.Fatalf("%+v was read, and cannot be written: %v", h, err)
		}
	})
}

package writecache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"
)

func TestHeaderSurvivesAndDamageIsSeen(t *testing.T) {
	want := Header{Pool: "rbd", Image: "größe", ImageID: "10ab", Formatted: true}
	block, err := want.Block()
	if err != nil || len(block) != BlockBytes {
		t.Fatal(err)
	}
	got, err := ParseHeader(block)
	if err != nil || *got != want {
		t.Fatalf("got %+v, %v", got, err)
	}
	if got, err := ParseHeader(make([]byte, BlockBytes)); got != nil || err != nil {
		t.Fatalf("zeros are a cache nobody used: %+v, %v", got, err)
	}
	for name, damage := range map[string]func([]byte){
		"magic":  func(b []byte) { b[0] = 0 },
		"length": func(b []byte) { b[9] = 0xff },
		"body":   func(b []byte) { b[20] ^= 1 },
	} {
		b := bytes.Clone(block)
		damage(b)
		if _, err := ParseHeader(b); !errors.Is(err, ErrHeaderCorrupt) {
			t.Errorf("damaged %s: got %v", name, err)
		}
	}
}

// image builds a cache disk: 4 KiB offset, then superblock and entries of {sector, seq}.
func image(seqCount uint64, entries [][2]uint64) []byte {
	disk := make([]byte, BlockBytes+2<<20)
	sb := disk[BlockBytes:]
	le := binary.LittleEndian
	le.PutUint32(sb, superblockMagic)
	le.PutUint32(sb[4:], 1)
	le.PutUint32(sb[8:], BlockBytes)
	le.PutUint64(sb[16:], uint64(len(entries)))
	le.PutUint64(sb[24:], seqCount)
	for i, e := range entries {
		le.PutUint64(sb[entriesOffset+i*entryBytes:], e[0])
		le.PutUint64(sb[entriesOffset+i*entryBytes+8:], e[1])
	}
	return disk
}

func TestCountDirtyFollowsTheKernelsRules(t *testing.T) {
	const free = math.MaxUint64
	many := make([][2]uint64, 70000) // more than a chunk of metadata
	for i := range many {
		many[i] = [2]uint64{uint64(i) * 8, 1}
	}
	for name, c := range map[string]struct {
		seq     uint64
		entries [][2]uint64
		blocks  int64
	}{
		"all free":              {5, [][2]uint64{{free, free}, {free, free}}, 0},
		"committed":             {5, [][2]uint64{{0, 4}, {8, 1}, {free, free}}, 2},
		"not yet committed":     {5, [][2]uint64{{0, 5}, {8, 6}}, 0},
		"same sector twice":     {5, [][2]uint64{{8, 1}, {8, 4}}, 1},
		"metadata over a chunk": {2, many, 70000},
	} {
		got, err := CountDirty(bytes.NewReader(image(c.seq, c.entries)), BlockBytes)
		if err != nil || got != c.blocks*BlockBytes {
			t.Errorf("%s: got %d, %v, want %d blocks", name, got, err, c.blocks)
		}
	}
	if got, err := CountDirty(bytes.NewReader(make([]byte, 2<<20)), BlockBytes); got != 0 || err != nil {
		t.Errorf("blank: %d, %v", got, err)
	}
	bad := image(1, nil)
	bad[BlockBytes] = 0x22
	if _, err := CountDirty(bytes.NewReader(bad), BlockBytes); !errors.Is(err, ErrSuperblock) {
		t.Errorf("foreign superblock: %v", err)
	}
}

func TestTableRoundTrip(t *testing.T) {
	for line, want := range map[string]Table{
		"0 131072 writecache s /dev/rbd0 /dev/drbd100 4096 2 start_sector 2048": {Bytes: 64 << 20, Origin: "/dev/rbd0", Cache: "/dev/drbd100"},
		"0 8 writecache s 252:0 147:100 4096 9 start_sector 2048 high_watermark 60 low_watermark 20 max_age 30000 cleaner": {
			Bytes: 4096, Origin: "252:0", Cache: "147:100", HighWatermark: 60, LowWatermark: 20, MaxAgeSeconds: 30, Cleaner: true,
		},
	} {
		if got := want.String(); got != line {
			t.Errorf("got  %s\nwant %s", got, line)
		}
		if got, err := ParseTable(line); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{"", "0 8 linear 252:0 0", "0 x writecache s a b 4096 0"} {
		if _, err := ParseTable(line); err == nil {
			t.Errorf("%q must be refused", line)
		}
	}
}

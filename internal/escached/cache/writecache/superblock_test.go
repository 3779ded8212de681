package writecache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// image builds a cache disk: 4 KiB offset, then superblock and entries of {sector, seq}.
func image(seqCount uint64, entries [][2]uint64) []byte {
	disk := make([]byte, cache.BlockBytes+2<<20)
	sb := disk[cache.BlockBytes:]
	le := binary.LittleEndian
	le.PutUint32(sb, superblockMagic)
	le.PutUint32(sb[4:], 1)
	le.PutUint32(sb[8:], cache.BlockBytes)
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
		got, err := countDirty(bytes.NewReader(image(c.seq, c.entries)), cache.BlockBytes)
		if err != nil || got != c.blocks*cache.BlockBytes {
			t.Errorf("%s: got %d, %v, want %d blocks", name, got, err, c.blocks)
		}
	}
	if got, err := countDirty(bytes.NewReader(make([]byte, 2<<20)), cache.BlockBytes); got != 0 || err != nil {
		t.Errorf("blank: %d, %v", got, err)
	}
	bad := image(1, nil)
	bad[cache.BlockBytes] = 0x22
	if _, err := countDirty(bytes.NewReader(bad), cache.BlockBytes); !errors.Is(err, cache.ErrCorrupt) {
		t.Errorf("foreign superblock: %v", err)
	}
}

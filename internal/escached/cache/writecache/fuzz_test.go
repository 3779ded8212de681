package writecache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// FuzzSuperblock reads any metadata of dm-writecache. What is counted as dirty fits into the cache,
// and only a superblock of zeros is clean without being one.
func FuzzSuperblock(f *testing.F) {
	f.Add(image(5, [][2]uint64{{0, 4}, {8, 1}, {8, 4}, {16, 9}})[cache.BlockBytes:][:256])
	f.Add(make([]byte, 64))
	f.Add([]byte("!\x93H#\x01\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff\xff\xff\x07\x00\x01"))
	f.Fuzz(func(t *testing.T, start []byte) {
		disk := make([]byte, 64<<10)
		copy(disk, start)
		sb, blank, err := parseSuperblock(disk[:cache.BlockBytes])
		if blank != (bytes.Count(disk[:cache.BlockBytes], []byte{0}) == cache.BlockBytes) || err != nil && !errors.Is(err, cache.ErrCorrupt) {
			t.Errorf("blank %v, %v", blank, err)
		}
		dirty, countErr := countDirty(bytes.NewReader(disk), 0)
		switch {
		case err != nil && countErr == nil:
			t.Errorf("%d bytes are dirty below a superblock that cannot be read: %v", dirty, err)
		case blank && dirty != 0, dirty < 0, dirty%cache.BlockBytes != 0:
			t.Errorf("%d bytes are dirty", dirty)
		case err == nil && !blank && countErr == nil && uint64(dirty/cache.BlockBytes) > sb.Blocks:
			t.Errorf("%d of %d blocks are dirty", dirty/cache.BlockBytes, sb.Blocks)
		case err == nil && !blank && countErr != nil && sb.Blocks < 1000:
			t.Errorf("%d blocks fit on the disk: %v", sb.Blocks, countErr)
		}
		if err == nil && !blank && binary.LittleEndian.Uint32(disk) != superblockMagic {
			t.Errorf("%x is taken for a superblock", disk[:8])
		}
	})
}

// FuzzDevice reads any table and status of the kernel. A table that is read is written and read
// again as the same; a cache is clean only if the kernel says so in numbers that can be.
func FuzzDevice(f *testing.F) {
	f.Add(int64(131072), "s 252:0 147:100 4096 2 start_sector 2048", "1 16000 15990 2 7 3 20 4 5 0 11 0 2 0")
	f.Add(int64(8), "s 252:0 147:100 4096 9 start_sector 2048 high_watermark 60 low_watermark 20 max_age 30000 cleaner", "0 0 0 0 0 0 0 0 0")
	f.Add(int64(8), "p 252:0 147:100 4096 0", "0 1 2 3 4 5 6 7 x")
	f.Fuzz(func(t *testing.T, sectors int64, tableText, status string) {
		if sectors < 0 || sectors > 1<<50/devmapper.SectorBytes {
			return // the kernel has no such device
		}
		d, err := parseDevice(devmapper.Device{Target: target, Sectors: sectors, Table: tableText, Status: status})
		if err != nil {
			return
		}
		s := d.state("v")
		if s.Dirty < 0 || s.Free < 0 || s.WritingBack < 0 || s.Known && s.Dirty+s.Free != d.blocks*cache.BlockBytes {
			t.Errorf("%q: %+v", status, s)
		}
		if s.Clean() && (!s.Known || d.blocks != d.free || d.writeback != 0) {
			t.Errorf("%q counts as clean", status)
		}
		if o := d.options; o.HighWatermark < 0 || o.LowWatermark < 0 || o.MaxAgeSeconds < 0 {
			t.Errorf("%q: %+v", tableText, o)
		}
		again, err := parseTable(d.bytes, string(bytes.Join(bytes.Fields([]byte(d.String()))[3:], []byte(" "))))
		if err != nil || again != d.table {
			t.Errorf("%+v came back as %+v, %v", d.table, again, err)
		}
	})
}

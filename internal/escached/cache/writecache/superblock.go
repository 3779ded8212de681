package writecache

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// errSuperblock means that there is no dm-writecache superblock where one must be. The kernel
// formats a zeroed superblock without a warning, which would drop everything in the cache. So this
// is checked before the kernel gets the disk.
var errSuperblock = fmt.Errorf("%w: its superblock is not dm-writecache's", cache.ErrCorrupt)

// superblock is the start of dm-writecache's metadata (drivers/md/dm-writecache.c,
// struct wc_memory_superblock).
type superblock struct {
	BlockSize uint32
	Blocks    uint64
	// SeqCount separates committed entries (below it) from all others.
	SeqCount uint64
}

const (
	// superblockAt is the superblock's offset on the disk: see start_sector in table.go.
	superblockAt = cache.HeaderBytes

	superblockMagic   = 0x23489321
	superblockVersion = 1
	entriesOffset     = 64
	entryBytes        = 16
)

// parseSuperblock decodes the first block behind the header. blank reports that it is all zeros.
func parseSuperblock(block []byte) (sb superblock, blank bool, err error) {
	if len(block) < entriesOffset {
		return sb, false, fmt.Errorf("%w: only %d bytes", errSuperblock, len(block))
	}
	le := binary.LittleEndian
	sb = superblock{BlockSize: le.Uint32(block[8:]), Blocks: le.Uint64(block[16:]), SeqCount: le.Uint64(block[24:])}
	switch {
	case cache.Blank(block):
		return sb, true, nil
	case le.Uint32(block) != superblockMagic:
		return sb, false, fmt.Errorf("%w: magic %#x", errSuperblock, le.Uint32(block))
	case le.Uint32(block[4:]) != superblockVersion:
		return sb, false, fmt.Errorf("%w: version %d is not 1", errSuperblock, le.Uint32(block[4:]))
	case sb.BlockSize != cache.BlockBytes:
		return sb, false, fmt.Errorf("%w: block size %d is not %d", errSuperblock, sb.BlockSize, cache.BlockBytes)
	case sb.Blocks == 0 || sb.Blocks > math.MaxInt64/cache.BlockBytes:
		return sb, false, fmt.Errorf("%w: %d blocks", errSuperblock, sb.Blocks)
	}
	return sb, false, nil
}

// countDirty returns how many bytes the cache at offset holds that its origin lacks. It applies the
// kernel's rules of assembly: an entry counts if its sequence number is below the superblock's,
// once for each of the origin's sectors. A blank superblock holds nothing.
func countDirty(dev io.ReaderAt, offset int64) (int64, error) {
	block := make([]byte, cache.BlockBytes)
	if _, err := dev.ReadAt(block, offset); err != nil {
		return 0, fmt.Errorf("read superblock: %w", err)
	}
	sb, blank, err := parseSuperblock(block)
	if err != nil || blank {
		return 0, err
	}
	dirty := map[uint64]struct{}{}
	const chunk = 1 << 20
	buf := make([]byte, chunk)
	// Direct I/O reads whole blocks, entries start at 64: walk the blocks and skip what is not an
	// entry.
	end := int64(entriesOffset) + int64(sb.Blocks)*entryBytes
	for pos := int64(0); pos < end; pos += chunk {
		want := min(int64(chunk), roundUp(end-pos, cache.BlockBytes))
		if _, err := dev.ReadAt(buf[:want], offset+pos); err != nil {
			return 0, fmt.Errorf("read cache metadata: %w", err)
		}
		for at := max(0, entriesOffset-pos); at < min(want, end-pos); at += entryBytes {
			sector := binary.LittleEndian.Uint64(buf[at:])
			seq := binary.LittleEndian.Uint64(buf[at+8:])
			if seq < sb.SeqCount && sector != math.MaxUint64 {
				dirty[sector] = struct{}{}
			}
		}
	}
	return int64(len(dirty)) * cache.BlockBytes, nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

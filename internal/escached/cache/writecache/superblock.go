package writecache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// ErrSuperblock says that there is no dm-writecache superblock where one must be. The kernel formats a zeroed one
// without a word, which would drop everything the cache holds, so this is checked before the kernel sees the device.
var ErrSuperblock = errors.New("the cache's superblock is not dm-writecache's")

// Superblock is the start of dm-writecache's metadata (drivers/md/dm-writecache.c, struct wc_memory_superblock).
type Superblock struct {
	BlockSize uint32
	Blocks    uint64
	// SeqCount separates committed entries (below it) from all others.
	SeqCount uint64
}

const (
	superblockMagic   = 0x23489321
	superblockVersion = 1
	entriesOffset     = 64
	entryBytes        = 16
)

// ParseSuperblock decodes the first block behind the header. blank reports that it is all zeros.
func ParseSuperblock(block []byte) (sb Superblock, blank bool, err error) {
	if len(block) < entriesOffset {
		return sb, false, fmt.Errorf("%w: only %d bytes", ErrSuperblock, len(block))
	}
	le := binary.LittleEndian
	sb = Superblock{BlockSize: le.Uint32(block[8:]), Blocks: le.Uint64(block[16:]), SeqCount: le.Uint64(block[24:])}
	switch {
	case bytes.Count(block, []byte{0}) == len(block):
		return sb, true, nil
	case le.Uint32(block) != superblockMagic:
		return sb, false, fmt.Errorf("%w: magic %#x", ErrSuperblock, le.Uint32(block))
	case le.Uint32(block[4:]) != superblockVersion:
		return sb, false, fmt.Errorf("%w: version %d is not 1", ErrSuperblock, le.Uint32(block[4:]))
	case sb.BlockSize != BlockBytes:
		return sb, false, fmt.Errorf("%w: block size %d is not %d", ErrSuperblock, sb.BlockSize, BlockBytes)
	case sb.Blocks == 0 || sb.Blocks > math.MaxInt64/BlockBytes:
		return sb, false, fmt.Errorf("%w: %d blocks", ErrSuperblock, sb.Blocks)
	}
	return sb, false, nil
}

// CountDirty returns how many bytes the cache at offset holds that its origin has not, by the rules the kernel applies
// when it assembles: an entry counts if its sequence number is below the superblock's, one per origin sector.
// A blank superblock holds nothing.
func CountDirty(dev io.ReaderAt, offset int64) (int64, error) {
	block := make([]byte, BlockBytes)
	if _, err := dev.ReadAt(block, offset); err != nil {
		return 0, fmt.Errorf("read superblock: %w", err)
	}
	sb, blank, err := ParseSuperblock(block)
	if err != nil || blank {
		return 0, err
	}
	dirty := map[uint64]struct{}{}
	const chunk = 1 << 20
	buf := make([]byte, chunk)
	// Direct I/O reads whole blocks, entries start at 64: walk the blocks and skip what is not an entry.
	end := int64(entriesOffset) + int64(sb.Blocks)*entryBytes
	for pos := int64(0); pos < end; pos += chunk {
		want := min(int64(chunk), roundUp(end-pos, BlockBytes))
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
	return int64(len(dirty)) * BlockBytes, nil
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// Package record is the format of the cache engine `log` on a cache's disk.
//
// An engine's part of the disk is two superblocks of one block each, and then a ring of records. A
// record is a header of one block and the data of its extents, in the order of the extents. All
// numbers are little endian. A record never goes past the end of the ring: one that has no room
// there begins at the start of the ring.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

const (
	// BlockBytes is the unit of everything on the disk.
	BlockBytes = 4096
	// MaxExtents is how many extents a header has room for.
	MaxExtents = (BlockBytes - extentsAt) / extentBytes
	// MaxBlocks is the length of the longest record, with its header.
	MaxBlocks = 1024
	// MaxVolumeBlock is the first block that no extent can have: 16 TiB.
	MaxVolumeBlock = 1<<32 - 1

	version     = 1
	flagsAt     = 72
	extentsAt   = 96
	extentBytes = 16

	// Flags.
	endsInterval   = 1
	unanswered     = 2
	startsInterval = 4 // an earlier version does not look at it
)

var (
	headerMagic = [8]byte{'E', 'S', 'C', 'L', 'O', 'G', 'R', 1}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// ErrInvalid means that a block is neither a header nor a superblock of this volume, or that it is torn.
var ErrInvalid = errors.New("not a valid block of the log")

// Volume tells the logs of different volumes, and of different lives of one, apart. It is random.
type Volume [16]byte

// Kind says what an extent does.
type Kind uint8

// Kinds of extents.
const (
	// Data is followed by its blocks.
	Data Kind = iota + 1
	// Zero makes blocks read as zeros.
	Zero
	// Trim does the same, and the origin may give the room back.
	Trim
)

// Extent is a run of a volume's blocks.
type Extent struct {
	Start  uint64 // in blocks
	Blocks uint32
	Kind   Kind
}

// DataBlocks is how many blocks of data the extent has in its record.
func (e Extent) DataBlocks() int {
	if e.Kind == Data {
		return int(e.Blocks)
	}
	return 0
}

func (e Extent) String() string {
	return fmt.Sprintf("%d blocks from %d", e.Blocks, e.Start)
}

// Place is where a record is. Block counts from the first block ever written and never falls; the
// place in the ring is the remainder.
type Place struct {
	Block    uint64
	Sequence uint64
}

// Header describes a record.
type Header struct {
	Volume Volume
	// Generation rises each time a log is opened for writing.
	Generation uint64
	// Place is the record's own.
	Place Place
	// Tail is the oldest record whose data the origin may lack, as of when this one was written.
	Tail Place
	// EndsInterval says that the volume after this record is one that its user asked to be stable.
	EndsInterval bool
	// StartsInterval says the same of the volume before this record. The record before may not say so: it was on its way already when
	// its user asked, or a process has found it to be the last one.
	StartsInterval bool
	// Unanswered says that nobody has an answer to what is in the record before the origin has it, and that the
	// origin has all records before it. If it is the last one, it is as if it had never been complete.
	Unanswered bool

	Extents []Extent

	sums []uint32 // of the data of each extent, as read
}

// Blocks is the length of the record, header and data.
func (h Header) Blocks() int {
	n := 1
	for _, e := range h.Extents {
		n += e.DataBlocks()
	}
	return n
}

// Encode writes the header into p, which holds the whole record: one block for the header, and then
// the data.
func (h Header) Encode(p []byte) error {
	if len(h.Extents) > MaxExtents || h.Blocks() > MaxBlocks {
		return fmt.Errorf("a record of %d extents and %d blocks is too long", len(h.Extents), h.Blocks())
	}
	if len(p) != h.Blocks()*BlockBytes {
		return fmt.Errorf("a record of %d blocks was given %d bytes", h.Blocks(), len(p))
	}
	b, data := p[:BlockBytes], p[BlockBytes:]
	clear(b)
	copy(b, headerMagic[:])
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(h.Extents)))
	copy(b[16:], h.Volume[:])
	binary.LittleEndian.PutUint64(b[32:], h.Generation)
	binary.LittleEndian.PutUint64(b[40:], h.Place.Block)
	binary.LittleEndian.PutUint64(b[48:], h.Place.Sequence)
	binary.LittleEndian.PutUint64(b[56:], h.Tail.Block)
	binary.LittleEndian.PutUint64(b[64:], h.Tail.Sequence)
	binary.LittleEndian.PutUint32(b[flagsAt:], h.flags())
	for i, e := range h.Extents {
		if !e.Valid() {
			return fmt.Errorf("%s of kind %d cannot be in a record", e, e.Kind)
		}
		at := b[extentsAt+i*extentBytes:]
		n := e.DataBlocks() * BlockBytes
		binary.LittleEndian.PutUint64(at, e.Start|uint64(e.Kind)<<56)
		binary.LittleEndian.PutUint32(at[8:], e.Blocks)
		binary.LittleEndian.PutUint32(at[12:], crc32.Checksum(data[:n], castagnoli))
		data = data[n:]
	}
	seal(b)
	return nil
}

func (h Header) flags() (flags uint32) {
	if h.EndsInterval {
		flags |= endsInterval
	}
	if h.Unanswered {
		flags |= unanswered
	}
	if h.StartsInterval {
		flags |= startsInterval
	}
	return flags
}

// Valid reports whether a record can have the extent.
func (e Extent) Valid() bool {
	return e.Blocks > 0 && e.Start < MaxVolumeBlock && uint64(e.Blocks) <= MaxVolumeBlock-e.Start && e.Kind >= Data && e.Kind <= Trim
}

// DecodeHeader reads a header of the volume. It returns ErrInvalid for anything else.
func DecodeHeader(b []byte, volume Volume) (Header, error) {
	var h Header
	if !sealed(b, headerMagic) {
		return h, ErrInvalid
	}
	copy(h.Volume[:], b[16:])
	count := binary.LittleEndian.Uint32(b[12:])
	if h.Volume != volume || count > MaxExtents {
		return h, ErrInvalid
	}
	h.Generation = binary.LittleEndian.Uint64(b[32:])
	h.Place = Place{binary.LittleEndian.Uint64(b[40:]), binary.LittleEndian.Uint64(b[48:])}
	h.Tail = Place{binary.LittleEndian.Uint64(b[56:]), binary.LittleEndian.Uint64(b[64:])}
	flags := binary.LittleEndian.Uint32(b[flagsAt:])
	h.EndsInterval, h.Unanswered = flags&endsInterval != 0, flags&unanswered != 0
	h.StartsInterval = flags&startsInterval != 0
	for i := range int(count) {
		at := b[extentsAt+i*extentBytes:]
		word := binary.LittleEndian.Uint64(at)
		e := Extent{Start: word & (1<<56 - 1), Blocks: binary.LittleEndian.Uint32(at[8:]), Kind: Kind(word >> 56)}
		if !e.Valid() {
			return h, ErrInvalid
		}
		h.Extents = append(h.Extents, e)
		h.sums = append(h.sums, binary.LittleEndian.Uint32(at[12:]))
	}
	if h.Blocks() > MaxBlocks {
		return h, ErrInvalid
	}
	return h, nil
}

// Damaged returns the numbers of those extents of a decoded header whose data is not what was written.
func (h Header) Damaged(data []byte) []int {
	var bad []int
	for i, e := range h.Extents {
		n := e.DataBlocks() * BlockBytes
		if len(data) < n || crc32.Checksum(data[:n], castagnoli) != h.sums[i] {
			bad = append(bad, i)
		}
		data = data[min(n, len(data)):]
	}
	return bad
}

const sumAt = 76 // the checksum of a block, over the block with this field as zeros

func seal(b []byte) {
	binary.LittleEndian.PutUint32(b[sumAt:], crc32.Checksum(b, castagnoli))
}

func sealed(b []byte, magic [8]byte) bool {
	if len(b) < BlockBytes || [8]byte(b) != magic || binary.LittleEndian.Uint32(b[8:]) != version {
		return false
	}
	sum := crc32.Update(0, castagnoli, b[:sumAt])
	sum = crc32.Update(sum, castagnoli, []byte{0, 0, 0, 0})
	sum = crc32.Update(sum, castagnoli, b[sumAt+4:BlockBytes])
	return sum == binary.LittleEndian.Uint32(b[sumAt:])
}

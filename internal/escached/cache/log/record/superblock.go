package record

import "encoding/binary"

// Superblocks is how many copies there are before the ring. They are written one after the other, so one
// that is torn, or decays, does no harm. The first one that is in order counts: it is the newest.
const Superblocks = 2

const memoryAt = 80

var superblockMagic = [8]byte{'E', 'S', 'C', 'L', 'O', 'G', 'S', 1}

// Memory names the memory that goes with a log on the host that has it open: writes that were answered and are not in the
// log yet are there. It is random for each memory. Zero means that there is none.
type Memory [16]byte

// Superblock says where a log begins.
type Superblock struct {
	Volume Volume
	// Generation is that of all records from Since on. Records before Since have lower ones.
	Generation uint64
	Since      uint64
	// Start is the first record that recovery reads. Nothing from there on is overwritten before a
	// superblock with a later start is stable.
	Start Place
	// RingBlocks is the length of the ring.
	RingBlocks uint64
	// Memory is that of the process which opened the log last.
	Memory Memory
}

// Encode writes the superblock into a block.
func (s Superblock) Encode(b []byte) {
	clear(b[:BlockBytes])
	copy(b, superblockMagic[:])
	binary.LittleEndian.PutUint32(b[8:], version)
	copy(b[16:], s.Volume[:])
	for i, v := range []uint64{s.Generation, s.Since, s.Start.Block, s.Start.Sequence} {
		binary.LittleEndian.PutUint64(b[32+8*i:], v)
	}
	binary.LittleEndian.PutUint64(b[64:], s.RingBlocks)
	copy(b[memoryAt:], s.Memory[:])
	seal(b[:BlockBytes])
}

// DecodeSuperblock reads a superblock of any volume. It returns ErrInvalid for anything else.
func DecodeSuperblock(b []byte) (Superblock, error) {
	var s Superblock
	if !sealed(b, superblockMagic) {
		return s, ErrInvalid
	}
	copy(s.Volume[:], b[16:])
	for i, v := range []*uint64{&s.Generation, &s.Since, &s.Start.Block, &s.Start.Sequence} {
		*v = binary.LittleEndian.Uint64(b[32+8*i:])
	}
	s.RingBlocks = binary.LittleEndian.Uint64(b[64:])
	copy(s.Memory[:], b[memoryAt:])
	if s.RingBlocks < MinRingBlocks {
		return s, ErrInvalid
	}
	return s, nil
}

const (
	// MinRingBlocks is the length of the shortest ring.
	MinRingBlocks = 16
	// MaxRingBlocks is that of the longest one: 16 TiB. The index has no numbers for places of later blocks.
	MaxRingBlocks = 1 << 32
)

// LongestBlocks is the length of the longest record in a ring: a quarter of it at most.
func LongestBlocks(ringBlocks uint64) int {
	return int(min(MaxBlocks, ringBlocks/4))
}

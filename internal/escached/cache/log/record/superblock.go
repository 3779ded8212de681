package record

import "encoding/binary"

// Superblocks is how many copies there are before the ring. They are written one after the other, so one
// that is torn, or decays, does no harm. The first one that is in order counts: it is the newest.
const Superblocks = 2

var superblockMagic = [8]byte{'E', 'S', 'C', 'L', 'O', 'G', 'S', 1}

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
	if s.RingBlocks < MinRingBlocks {
		return s, ErrInvalid
	}
	return s, nil
}

// MinRingBlocks is the length of the shortest ring.
const MinRingBlocks = 16

// LongestBlocks is the length of the longest record in a ring: a quarter of it at most.
func LongestBlocks(ringBlocks uint64) int {
	return int(min(MaxBlocks, ringBlocks/4))
}

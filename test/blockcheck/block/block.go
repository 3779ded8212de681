// Package block defines the numbered blocks that blockcheck writes, and the acknowledgements it
// reports, so that the list of what was promised can be kept far from the device that is to keep
// the promise.
package block

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Size of every block, in bytes.
const Size = 4096

const headerSize = 32

var magic = [8]byte{'b', 'l', 'k', 'c', 'h', 'e', 'c', 'k'}

// ID says which write of which writer a block came from.
type ID struct {
	Epoch  uint64 // of the writer: each start of a writer has one of its own
	Number uint64 // counts the writer's blocks up; a later write has a higher number
}

// Before reports whether a came first: by epoch, then by number.
func (a ID) Before(b ID) bool {
	return a.Epoch < b.Epoch || a.Epoch == b.Epoch && a.Number < b.Number
}

func (a ID) String() string { return fmt.Sprintf("%d/%d", a.Epoch, a.Number) }

// Errors of Parse.
var (
	ErrMissing = errors.New("no block was ever written here")
	ErrCorrupt = errors.New("the block's content is not what its writer wrote")
	ErrMoved   = errors.New("the block belongs to another offset")
)

// Fill makes p, of Size bytes, the block of id at offset. Every byte depends on all three, so no
// part of another block can pass for it.
func Fill(p []byte, id ID, offset int64) {
	copy(p, magic[:])
	binary.LittleEndian.PutUint64(p[8:], id.Epoch)
	binary.LittleEndian.PutUint64(p[16:], id.Number)
	binary.LittleEndian.PutUint64(p[24:], uint64(offset))
	state := seed(id, offset)
	for i := headerSize; i < Size; i += 8 {
		state = next(state)
		binary.LittleEndian.PutUint64(p[i:], state)
	}
}

// Parse says whose block p is. It needs no checksum: the whole content follows from the header.
func Parse(p []byte, offset int64) (ID, error) {
	if len(p) != Size || !bytes.Equal(p[:8], magic[:]) {
		return ID{}, ErrMissing
	}
	id := ID{Epoch: binary.LittleEndian.Uint64(p[8:]), Number: binary.LittleEndian.Uint64(p[16:])}
	written := int64(binary.LittleEndian.Uint64(p[24:]))
	state := seed(id, written)
	for i := headerSize; i < Size; i += 8 {
		state = next(state)
		if binary.LittleEndian.Uint64(p[i:]) != state {
			return id, ErrCorrupt
		}
	}
	if written != offset {
		return id, fmt.Errorf("%w: %d", ErrMoved, written)
	}
	return id, nil
}

func seed(id ID, offset int64) uint64 {
	s := mix(id.Epoch + 1)
	s = mix(s ^ id.Number)
	return mix(s^uint64(offset)) | 1 // xorshift stays at zero for ever
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// next is one step of xorshift64: cheap, because the hosts are emulated and the generator must not
// be what is measured.
func next(x uint64) uint64 {
	x ^= x << 13
	x ^= x >> 7
	return x ^ x<<17
}

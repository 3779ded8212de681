package writecache

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// The first MiB of every cache is escached's own. It lies on the replicated device, so what it says travels with the
// data: whose cache this is, and whether it was ever formatted.
const (
	// HeaderBytes is the room before the cache proper.
	HeaderBytes = 1 << 20
	// BlockBytes is the unit of all direct I/O and the cache's block size.
	BlockBytes = 4096
)

// ErrHeaderCorrupt says that the first block is neither blank nor a header.
var ErrHeaderCorrupt = errors.New("the cache's header is damaged")

// Header is the identity of a cache.
type Header struct {
	Pool    string `json:"pool"`
	Image   string `json:"image"`
	ImageID string `json:"imageID"`
	// Formatted is true from the moment before anybody could write through the cache. A cache that was formatted and
	// has no superblock has lost data and must never be formatted again.
	Formatted bool `json:"formatted"`
}

var (
	headerMagic = [8]byte{'E', 'S', 'C', 'A', 'C', 'H', 'E', 1}
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// Block encodes the header as one block.
func (h Header) Block() ([]byte, error) {
	body, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	block := make([]byte, BlockBytes)
	if len(body) > len(block)-16 {
		return nil, errors.New("encode header: names too long")
	}
	copy(block, headerMagic[:])
	binary.LittleEndian.PutUint32(block[8:], uint32(len(body)))
	binary.LittleEndian.PutUint32(block[12:], crc32.Checksum(body, castagnoli))
	copy(block[16:], body)
	return block, nil
}

// ParseHeader decodes the first block of a cache. It returns nil for a block of zeros: a cache nobody has used.
func ParseHeader(block []byte) (*Header, error) {
	if len(block) < BlockBytes {
		return nil, fmt.Errorf("%w: %d bytes", ErrHeaderCorrupt, len(block))
	}
	if bytes.Count(block, []byte{0}) == len(block) {
		return nil, nil //nolint:nilnil // blank is neither a header nor an error
	}
	size := binary.LittleEndian.Uint32(block[8:])
	if !bytes.Equal(block[:8], headerMagic[:]) || int(size) > len(block)-16 {
		return nil, fmt.Errorf("%w: no magic", ErrHeaderCorrupt)
	}
	body := block[16 : 16+size]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(block[12:]) {
		return nil, fmt.Errorf("%w: wrong checksum", ErrHeaderCorrupt)
	}
	var h Header
	if err := json.Unmarshal(body, &h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeaderCorrupt, err)
	}
	return &h, nil
}

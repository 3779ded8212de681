package cache

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
)

// The first MiB of every cache's disk belongs to escached, whatever the engine. Its first block
// says which image the cache belongs to. The disk is replicated, so this travels with the data.
const (
	// HeaderBytes is the size of escached's part. An engine uses only the space behind it.
	HeaderBytes = 1 << 20
	// BlockBytes is the unit of I/O on a cache's disk.
	BlockBytes = 4096
)

// Identity names the image that a cache belongs to.
type Identity struct {
	Pool    string `json:"pool"`
	Image   string `json:"image"`
	ImageID string `json:"imageID"`
}

func (id Identity) String() string {
	return fmt.Sprintf("%s/%s (id %s)", id.Pool, id.Image, id.ImageID)
}

// Header is the content of a disk's first block.
type Header struct {
	Identity

	// Formatted is set before anyone can write through the cache. A disk that was formatted and has
	// no metadata of the engine has lost data and must never be formatted again.
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

// parseHeader decodes a disk's first block. It returns nil for a block of zeros, which is that of a
// disk that was never used, and ErrCorrupt for anything that is not a header.
func parseHeader(block []byte) (*Header, error) {
	bad := func(why string) error { return fmt.Errorf("%w: its header has %s", ErrCorrupt, why) }
	if len(block) < BlockBytes {
		return nil, bad(fmt.Sprintf("only %d bytes", len(block)))
	}
	if Blank(block) {
		return nil, nil //nolint:nilnil // blank is neither a header nor an error
	}
	size := binary.LittleEndian.Uint32(block[8:])
	if !bytes.Equal(block[:8], headerMagic[:]) || int(size) > len(block)-16 {
		return nil, bad("no magic")
	}
	body := block[16 : 16+size]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(block[12:]) {
		return nil, bad("a wrong checksum")
	}
	var h Header
	if err := json.Unmarshal(body, &h); err != nil {
		return nil, bad(err.Error())
	}
	return &h, nil
}

// Formatted reports by a disk's first block whether the engine's metadata must be on it. It returns
// ErrCorrupt for a block that is no header.
func Formatted(block []byte) (bool, error) {
	header, err := parseHeader(block)
	return header != nil && header.Formatted, err
}

// IdentityOn returns by a disk's first block whose cache it is. It returns ErrCorrupt for a block that is
// no header, also for a blank one.
func IdentityOn(block []byte) (Identity, error) {
	header, err := parseHeader(block)
	switch {
	case err != nil:
		return Identity{}, err
	case header == nil:
		return Identity{}, fmt.Errorf("%w: its header is blank", ErrCorrupt)
	}
	return header.Identity, nil
}

// Blank reports whether a block has only zeros.
func Blank(block []byte) bool { return bytes.Count(block, []byte{0}) == len(block) }

// Judge decides by a disk's first block what to do with a disk that should hold id's cache. format
// is true if the disk was never used, or if its formatting was interrupted: it may be formatted. If
// format is false and err is nil, the disk was formatted, and the engine must find its own
// metadata. usedHere is that of Engine.Prepare.
func (id Identity) Judge(block []byte, usedHere bool) (format bool, err error) {
	header, err := parseHeader(block)
	switch {
	case err != nil:
		return false, err
	case header == nil && usedHere:
		return false, fmt.Errorf("%w: it was used here, but its header is blank now: "+
			"data that was not written back is lost; discard the replicas to start again with an empty cache", ErrCorrupt)
	case header == nil:
		return true, nil
	case header.Identity != id:
		return false, fmt.Errorf("%w: it is that of %s, not of %s", ErrForeign, header.Identity, id)
	}
	return !header.Formatted, nil
}

package ring

import (
	"fmt"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// reader reads the ring in pieces as long as the longest record. A log of short records would otherwise cost two reads for each
// of them, and far more processor time than looking at what was read.
type reader struct {
	log      *Log
	buffer   []byte
	from, to uint64 // the blocks that the buffer has
}

func (l *Log) newReader() *reader {
	return &reader{log: l, buffer: AlignedBytes(record.LongestBlocks(l.ring) * record.BlockBytes)}
}

// blocks returns some blocks, which do not go past the end of the ring and are no more than the longest record has. They are valid
// until the next call.
func (r *reader) blocks(at uint64, n int) ([]byte, error) {
	if at < r.from || at+uint64(n) > r.to {
		if err := r.fill(at, n); err != nil {
			return nil, err
		}
	}
	return r.buffer[(at-r.from)*record.BlockBytes:][:n*record.BlockBytes], nil
}

// fill reads from a block on. Only those blocks must be readable that somebody asks for.
func (r *reader) fill(at uint64, n int) error {
	r.from, r.to = at, at
	length := min(uint64(len(r.buffer)/record.BlockBytes), r.log.ring-at%r.log.ring)
	if _, err := r.log.disk.ReadAt(r.buffer[:length*record.BlockBytes], r.log.offset(at)); err != nil {
		length = uint64(n)
		if _, err := r.log.disk.ReadAt(r.buffer[:length*record.BlockBytes], r.log.offset(at)); err != nil {
			return fmt.Errorf("read %d blocks of the log from %d: %w", n, at, err)
		}
	}
	r.to = at + length
	return nil
}

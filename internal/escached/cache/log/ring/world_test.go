package ring

import (
	"math/rand/v2"
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// world is a volume over a log and an origin, and what was acknowledged.
type world struct {
	disk   *logtest.Disk
	log    *Log
	origin []byte
	random *rand.Rand
	serial uint32

	// now is the volume after the last record that was begun, and before it what it was after the
	// last one that is stable.
	now, before []byte
}

const (
	volumeBlocks = 24
	ringBlocks   = 48
)

func newWorld(seed uint64) *world {
	random := rand.New(rand.NewPCG(seed, 7))
	w := &world{disk: logtest.NewDisk(record.Superblocks+ringBlocks, random), random: random, origin: make([]byte, volumeBlocks*record.BlockBytes)}
	w.now, w.before = slices.Clone(w.origin), slices.Clone(w.origin)
	// The disk had other content, some of it of an earlier log.
	for i := range w.disk.Stable {
		w.disk.Stable[i] = byte(random.Uint32())
	}
	return w
}

func (w *world) block() []byte {
	p := make([]byte, record.BlockBytes)
	w.serial++
	for i := 0; i < len(p); i += logtest.SectorBytes { // each sector says which write it is of
		p[i], p[i+1], p[i+2] = byte(w.serial), byte(w.serial>>8), byte(i/logtest.SectorBytes+1)
	}
	return p
}

// write fills a batch with random writes, and changes the volume as they do.
func (w *world) write(b *Batch) {
	for range 1 + w.random.IntN(4) {
		start := w.random.Uint64N(volumeBlocks)
		n := 1 + w.random.IntN(min(4, volumeBlocks-int(start)))
		if w.random.IntN(5) == 0 {
			if b.Zero(start, uint32(n), w.random.IntN(2) == 0) {
				clear(w.now[start*record.BlockBytes:][:n*record.BlockBytes])
			}
			continue
		}
		var data []byte
		for range n {
			data = append(data, w.block()...)
		}
		done := b.Write(start, data)
		copy(w.now[start*record.BlockBytes:], data[:done*record.BlockBytes])
	}
}

// read returns the whole volume.
func (w *world) read(l *Log) ([]byte, error) {
	p := AlignedBytes(volumeBlocks * record.BlockBytes)
	err := l.Read(0, p, func(start uint64, p []byte) error {
		copy(p, w.origin[start*record.BlockBytes:])
		return nil
	})
	return p, err
}

// writeBack brings the oldest records to the origin. The power may be lost after any piece of it.
func (w *world) writeBack(blocks uint64) error { return w.writeBackUpTo(blocks, 1<<62) }

func (w *world) writeBackUpTo(blocks, last uint64) error {
	work, err := w.log.Oldest(blocks, last)
	if err != nil || work.Empty() {
		return err
	}
	for _, p := range work.Pieces {
		if w.random.IntN(40) == 0 {
			return logtest.ErrPower
		}
		into := w.origin[p.Start*record.BlockBytes:][:p.Blocks*record.BlockBytes]
		if p.Kind != record.Data {
			clear(into)
		} else if err := w.log.ReadPiece(p, into); err != nil {
			return err
		}
	}
	w.log.Done(work)
	return nil
}

package ring

import (
	"sync"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// sparse is a disk of any size, of which only blocks that were written take memory.
type sparse struct {
	mu     sync.Mutex
	blocks map[int64][record.BlockBytes]byte
}

func (d *sparse) ReadAt(p []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 0; i < len(p); i += record.BlockBytes {
		b := d.blocks[at+int64(i)]
		copy(p[i:], b[:])
	}
	return len(p), nil
}

func (d *sparse) WriteStable(p []byte, at int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := 0; i < len(p); i += record.BlockBytes {
		d.blocks[at+int64(i)] = [record.BlockBytes]byte(p[i:])
	}
	return nil
}

// TestALogOnADiskLargerThan16TiB: a block's place in the ring is a number of 32 bits.
func TestALogOnADiskLargerThan16TiB(t *testing.T) {
	disk := &sparse{blocks: map[int64][record.BlockBytes]byte{}}
	if err := Format(disk, record.Volume{1}, 20<<40); err != nil {
		t.Fatal(err)
	}
	super, err := readSuper(disk)
	if err != nil {
		t.Fatal(err)
	}
	super.Start.Block = 1<<32 - 4 // as after many writes
	if err := writeSuper(disk, super); err != nil {
		t.Fatal(err)
	}
	log, _, err := Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	batch := log.NewBatch()
	p := make([]byte, 8*record.BlockBytes)
	for i := range p {
		p[i] = byte(1 + i/record.BlockBytes)
	}
	for range 3 {
		batch.Write(0, p)
		if _, err := log.Append(batch); err != nil {
			t.Fatal(err)
		}
		batch.Reset()
	}
	got := AlignedBytes(len(p))
	if err := log.Read(0, got, func(uint64, []byte) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if string(got) != string(p) {
		t.Errorf("it reads %d, %d, %d ..., and %d, %d, %d ... was written", got[0], got[4096], got[8192], p[0], p[4096], p[8192])
	}
}

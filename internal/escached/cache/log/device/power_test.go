package device

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// volume says which write each block is of. Zero is the content of a new volume, and of a block that was zeroed.
type volume [volumeBlocks]uint32

// life is a volume that loses its power again and again.
type life struct {
	*Device

	disk   *logtest.Disk
	image  *image
	random *rand.Rand
	serial uint32

	// history has what the volume was after each write since the last Flush that returned, and at it.
	history []volume
}

// After a power loss the volume is what it was after some write that was not acknowledged as stable yet, or after the last
// one that was: none before that is missing, no later one is there without those before it, and no block is there in parts.
func TestAPowerCutLeavesWhatTheVolumeWasAtOneMoment(t *testing.T) {
	lost, wanted, lives := 0, logtest.PowerCuts(t, 2000), uint64(0)
	for ; lost < wanted; lives++ {
		l := newLife(t, lives)
		for range 15 {
			l.cut(t, 1+l.random.IntN(25))
			lost++
		}
	}
	t.Logf("%d power cuts in %d volumes", lost, lives)
}

// FuzzPowerCuts chooses the writes at which the power is lost: the first one of a life is in its recovery.
func FuzzPowerCuts(f *testing.F) {
	f.Add(uint64(0), []byte{1, 2, 3, 20})
	f.Add(uint64(7), []byte{25, 1, 1, 1, 1, 60, 2, 2, 2})
	f.Fuzz(func(t *testing.T, seed uint64, cuts []byte) {
		l := newLife(t, seed)
		for _, at := range cuts[:min(len(cuts), 30)] {
			l.cut(t, 1+int(at))
		}
	})
}

func newLife(t *testing.T, seed uint64) *life {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 11))
	l := &life{disk: logtest.NewDisk(record.Superblocks+ringBlocks, random), image: newImage(), random: random, history: []volume{{}}}
	must(t, ring.Format(l.disk, record.Volume{byte(seed)}, int64(len(l.disk.Stable))))
	return l
}

// cut has the volume live until the disk loses its power at a write.
func (l *life) cut(t *testing.T, write int) {
	t.Helper()
	l.disk.PowerOn(write)
	if err := l.until(t); !errors.Is(err, logtest.ErrPower) {
		t.Fatalf("after %d writes: %v", l.serial, err)
	}
}

func (l *life) until(t *testing.T) error {
	t.Helper()
	log, losses, err := ring.Open(l.disk)
	if err != nil {
		return err
	}
	if len(losses) > 0 {
		t.Fatalf("lost: %v", losses)
	}
	l.Device = New(log, l.image)
	now, err := l.content(t)
	if err != nil {
		return err
	}
	if !slices.Contains(l.history, now) {
		t.Fatalf("the volume is %v, which it was not after any of the last writes: %v", now, l.history)
	}
	l.history = []volume{now}
	for {
		if err := l.step(); err != nil {
			return err
		}
	}
}

func (l *life) step() error {
	switch l.random.IntN(12) {
	case 0:
		_, err := l.Step()
		if errors.Is(err, ErrHeld) {
			return nil
		}
		return err
	case 1:
		l.Resume()
		if err := l.Hold(context.Background(), time.Minute); err != nil {
			return err
		}
		l.Resume()
		return nil
	case 2, 3, 4:
		err := l.Flush()
		if err == nil {
			l.history = l.history[len(l.history)-1:]
		}
		return err
	case 5:
		l.WriteThrough(l.random.IntN(4) == 0)
		return nil
	}
	return l.write()
}

// write writes, and says so before: the write may be there although it did not return.
func (l *life) write() error {
	l.serial++
	next := l.history[len(l.history)-1]
	start := l.random.IntN(volumeBlocks)
	n := 1 + l.random.IntN(min(3, volumeBlocks-start))
	zero := l.random.IntN(5) == 0
	var data []byte
	for i := range n {
		if next[start+i] = l.serial; zero {
			next[start+i] = 0
		}
		data = append(data, numbered(l.serial)...)
	}
	// A write of several blocks may end in the middle, at the end of a record.
	for i := 1; i < n; i++ {
		part := next
		copy(part[start+i:start+n], l.history[len(l.history)-1][start+i:])
		defer func() { l.history = slices.Insert(l.history, len(l.history)-1, part) }()
	}
	l.history = append(l.history, next)
	if zero {
		return l.Zero(uint64(start), uint32(n), l.random.IntN(2) == 0)
	}
	return l.Write(uint64(start), data)
}

func numbered(serial uint32) []byte {
	p := make([]byte, record.BlockBytes)
	for i := 0; i < len(p); i += logtest.SectorBytes {
		binary.LittleEndian.PutUint32(p[i:], serial)
	}
	return p
}

func (l *life) content(t *testing.T) (volume, error) {
	t.Helper()
	var v volume
	p := ring.AlignedBytes(record.BlockBytes)
	for b := range v {
		if err := l.Read(uint64(b), p); err != nil {
			return v, err
		}
		v[b] = binary.LittleEndian.Uint32(p)
		if !slices.Equal(p, numbered(v[b])) {
			t.Fatalf("block %d is there in parts", b)
		}
	}
	return v, nil
}

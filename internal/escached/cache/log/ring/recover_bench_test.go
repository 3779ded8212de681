package ring

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache/log/blockfile"
	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// BenchmarkRecovery opens a log of live records, which a file has, and reports the processor time of one GiB of them: what the disk
// takes comes on top. The blocks are at random places of a volume of 1 TiB, the worst case for the index.
func BenchmarkRecovery(b *testing.B) {
	const live = 256 << 20
	for _, blocks := range []int{1, 4, 32, 250, record.MaxBlocks - 1} {
		b.Run(fmt.Sprintf("records of %d blocks", blocks), func(b *testing.B) {
			disk := onFile(b, fullLog(b, live, blocks))
			var spent, opened float64
			for b.Loop() {
				before := processorSeconds(b)
				l, losses, err := Inspect(disk)
				spent += processorSeconds(b) - before
				if err != nil || len(losses) > 0 {
					b.Fatal(losses, err)
				}
				opened += float64(l.State().Live * record.BlockBytes)
			}
			b.ReportMetric(spent/opened*(1<<30), "cpu-s/GiB")
		})
	}
}

// fullLog has a log of so many bytes, in records of so many blocks of data, each block its own extent as far as a record has room.
func fullLog(b *testing.B, bytes, blocks int) *logtest.Disk {
	b.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	disk := logtest.NewDisk(bytes/record.BlockBytes+record.Superblocks+record.MaxBlocks, random)
	if err := Format(disk, record.Volume{1}, int64(len(disk.Stable))); err != nil {
		b.Fatal(err)
	}
	l, _, err := Open(disk)
	if err != nil {
		b.Fatal(err)
	}
	batch := l.NewBatch()
	run := (blocks + record.MaxExtents - 1) / record.MaxExtents // blocks of an extent
	data := make([]byte, run*record.BlockBytes)
	for l.State().Live < uint64(bytes/record.BlockBytes) {
		batch.Reset()
		for left := blocks; left > 0; {
			data[0] = byte(left)
			n := min(run, left)
			left -= batch.Write(random.Uint64N(1<<28-uint64(run)), data[:n*record.BlockBytes])
		}
		if _, err := l.Append(batch); err != nil {
			b.Fatal(err)
		}
	}
	return disk
}

// onFile returns the same log on a file, past the page cache.
func onFile(b *testing.B, d *logtest.Disk) *blockfile.File {
	b.Helper()
	path := filepath.Join(b.TempDir(), "log")
	if err := os.WriteFile(path, d.Stable, 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := blockfile.OpenLog(path)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return f
}

// processorSeconds is what this process has taken from the processors, of the kernel's time, too.
func processorSeconds(b *testing.B) float64 {
	b.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

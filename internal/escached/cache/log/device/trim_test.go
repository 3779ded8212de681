package device

import (
	"math/rand/v2"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/logtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/resident"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// zeroImage is an origin that has room for any volume, and nothing in it.
type zeroImage struct {
	*image

	blocks int64
}

func (i *zeroImage) Zero(_, bytes int64, _ bool) error {
	i.blocks += bytes / record.BlockBytes
	return nil
}

// A process with more would be killed, or the next one would not be done with reading in time.
func TestScatteredTrimsWaitForTheImage(t *testing.T) {
	const (
		blocks = 1 << 15
		others = 224 << 20 // what the index leaves of the memory that does not grow with the log
	)
	disk := logtest.NewDisk(record.Superblocks+blocks, rand.New(rand.NewPCG(3, 4)))
	must(t, ring.Format(disk, record.Volume{1}, int64(len(disk.Stable))))
	log, _, err := ring.Open(disk)
	must(t, err)
	image := &zeroImage{image: newImage()}
	d := New(log, image)
	most := ring.State{}
	trims := rand.New(rand.NewPCG(5, 6)).Perm(1_200_000)
	for i, block := range trims {
		must(t, d.Zero(uint64(2*block), 1, true))
		if i%10_000 == 0 {
			if s := d.State().Log; s.IndexBytes > most.IndexBytes {
				most = s
			}
		}
	}
	must(t, d.Flush())
	t.Logf("at most %d ranges in %d blocks of the log, and %d bytes of index", most.Ranges, most.Live, most.IndexBytes)
	if most.IndexBytes+others > resident.Bound(blocks*record.BlockBytes) || most.Ranges < 1<<20-2000 {
		t.Errorf("too much memory, or too few trims before the image had them: %+v", most)
	}
	s := d.State().Log
	again, losses, err := ring.Inspect(disk)
	if err != nil || len(losses) > 0 || again.State().Dirty != s.Dirty || again.State().Ranges != s.Ranges {
		t.Errorf("%v %v, %+v, want %+v", err, losses, again.State(), s)
	}
	if image.blocks == 0 || uint64(image.blocks)+s.Dirty != uint64(len(trims)) {
		t.Errorf("the image has %d trims, %d are dirty, and %d were written", image.blocks, s.Dirty, len(trims))
	}
}

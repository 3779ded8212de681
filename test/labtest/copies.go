package labtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
)

// equalLimit is for what is still on its way to a disk, and for the looks themselves.
const equalLimit = time.Minute

// LaidAnew is for a volume whose copies may be made anew, because Ceph has all of it: what was written so far need not be on both
// of them.
func (v *Volume) LaidAnew() { v.since = v.lab.epochs.Load() + 1 }

// MustBeEqual compares the copies of two hosts below DRBD, each read past the page cache, and fails the test for each block that
// differs. It looks again for a while, because the last writes may be on their way. It is right only while the holder has the
// device, nobody writes to it, its cache is clean, and both copies are current, which it waits for.
//
// It compares the cache's own notes, and wherever they lie the blocks that writers of this lab wrote since the copies were laid
// (see [Volume.LaidAnew]), also those that the cache does not use any more. Elsewhere copies differ rightly: the first sync is
// skipped, so what was on the disks before stays there. What a filesystem wrote is not told from that.
func (v *Volume) MustBeEqual(t T, holder, other *Host) {
	t.Helper()
	blocks := 0
	WaitForCommand(t, fmt.Sprintf("the copies of %s on %s and %s are equal", v, holder.Name, other.Name), equalLimit,
		func(ctx context.Context) error {
			status, err := v.status(ctx, holder)
			if err != nil {
				return err
			}
			if !Redundant(status) {
				return fmt.Errorf("they are not both current: %s", describe(status))
			}
			hosts := []*Host{holder, other}
			copies := make([]map[string]string, len(hosts))
			var reads errgroup.Group
			for i, h := range hosts {
				reads.Go(func() (err error) {
					copies[i], err = v.sums(ctx, h, notesBytes(status.Engine, status.CacheBytes))
					return err
				})
			}
			if err := reads.Wait(); err != nil {
				return err
			}
			blocks = len(copies[0])
			return differences(copies[0], copies[1])
		})
	t.Logf("%d blocks are the same on the copies of %s and %s", blocks, holder.Name, other.Name)
}

// notesBytes is how much of the beginning of a cache's disk was written when it was formatted, and so is the same on both copies:
// escached's header, and what the engine notes there: a log has two superblocks.
func notesBytes(engine escache.Engine, cacheBytes int64) int64 {
	if engine == escache.EngineLog {
		return cache.HeaderBytes + 2*cache.BlockBytes
	}
	// dm-writecache has 16 bytes for each block. DRBD has a part of the disk, too, which is far less than a MiB for each GiB.
	blocks := (cacheBytes - cacheBytes>>10 - cache.HeaderBytes - 1<<20) / (cache.BlockBytes + 16)
	return cache.HeaderBytes + blocks*16/cache.BlockBytes*cache.BlockBytes
}

// sums are the checksums that `blockcheck sums` prints, by offset on the disk.
func (v *Volume) sums(ctx context.Context, h *Host, head int64) (map[string]string, error) {
	out, err := h.Try(ctx, nil, "blockcheck", "sums", v.LogicalVolume(), "--head", fmt.Sprint(head), "--since", fmt.Sprint(v.since))
	if err != nil {
		return nil, err
	}
	blocks := map[string]string{}
	for line := range strings.Lines(out) {
		offset, sum, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			return nil, fmt.Errorf("%s: %q is no checksum of a block", h.Name, line)
		}
		blocks[offset] = sum
	}
	return blocks, nil
}

// differences returns an error for the blocks that are not the same in both copies.
func differences(a, b map[string]string) error {
	all := maps.Clone(a)
	maps.Copy(all, b)
	var wrong []string
	for _, offset := range slices.Sorted(maps.Keys(all)) {
		if a[offset] != b[offset] {
			wrong = append(wrong, fmt.Sprintf("at %s: %q and %q", offset, a[offset], b[offset]))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	const most = 10
	return fmt.Errorf("%d of %d blocks differ: %w", len(wrong), len(all), errors.New(strings.Join(wrong[:min(len(wrong), most)], "; ")))
}

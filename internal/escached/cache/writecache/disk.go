package writecache

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Wipe implements cache.Engine. It zeroes escached's header and the kernel's superblock in one
// write.
func (e *Engine) Wipe(ctx context.Context, disk cache.Disk) error {
	return e.disks.Write(ctx, disk.Name, disk.Path, 0, make([]byte, superblockAt+cache.BlockBytes))
}

// Unused implements cache.Engine. The header is written before anything else, so a blank one means
// an unused disk. The superblock is read too: a resync need not copy the header first.
func (e *Engine) Unused(ctx context.Context, disk cache.Disk) (bool, error) {
	header, superblock, err := e.start(ctx, disk)
	return err == nil && cache.Blank(header) && cache.Blank(superblock), err
}

// dirtyTimeout bounds reading all of a cache's metadata.
const dirtyTimeout = time.Minute

// ReadTime implements cache.Engine: only metadata is read.
func (*Engine) ReadTime(int64) time.Duration { return dirtyTimeout }

// Dirty implements cache.Engine. It runs dirtyOf in a child.
func (e *Engine) Dirty(ctx context.Context, disk cache.Disk) (int64, error) {
	return cache.CountDirty(ctx, e.disks, disk, dirtyQuery, dirtyTimeout)
}

// dirtyOf counts the dirty bytes on a disk. A blank superblock is an empty cache only if the disk
// was not formatted.
func dirtyOf(device io.ReaderAt) (int64, error) {
	block := make([]byte, cache.BlockBytes)
	if _, err := device.ReadAt(block, 0); err != nil {
		return 0, fmt.Errorf("read header: %w", err)
	}
	formatted, err := cache.Formatted(block)
	if err != nil {
		return 0, err
	}
	if formatted {
		if _, err := device.ReadAt(block, superblockAt); err != nil {
			return 0, fmt.Errorf("read superblock: %w", err)
		}
		if err := mustBeSuperblock(block); err != nil {
			return 0, err
		}
	}
	return countDirty(device, superblockAt)
}

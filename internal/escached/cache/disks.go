package cache

import (
	"context"
	"time"
)

// Disks reads and writes whole blocks past the page cache, in a child.
type Disks interface {
	// Read returns the blocks at these offsets.
	Read(ctx context.Context, volume, device string, offsets ...int64) ([][]byte, error)
	Write(ctx context.Context, volume, device string, offset int64, data []byte) error
	// Query runs a function of child.Main's queries on a device and returns what it prints.
	Query(ctx context.Context, volume, query, device string, timeout time.Duration) ([]byte, error)
}

// Write writes the header to a disk's first block.
func (h Header) Write(ctx context.Context, disks Disks, disk Disk) error {
	block, err := h.Block()
	if err != nil {
		return err
	}
	return disks.Write(ctx, disk.Name, disk.Path, 0, block)
}

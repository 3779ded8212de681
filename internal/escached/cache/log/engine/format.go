package engine

import (
	"context"
	"crypto/rand"
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// newVolume returns the name of a new log. Records of logs that were on the disk before have other ones.
func newVolume() (v record.Volume) {
	_, _ = rand.Read(v[:]) // it never fails
	return v
}

// onDisk writes the log's part of a disk in children.
type onDisk struct {
	ctx   context.Context
	disks cache.Disks
	disk  cache.Disk
}

func (d onDisk) ReadAt(p []byte, at int64) (int, error) {
	blocks, err := d.disks.Read(d.ctx, d.disk.Name, d.disk.Path, blocksOf(cache.HeaderBytes+at, int64(len(p)))...)
	return copy(p, slices.Concat(blocks...)), err
}

func (d onDisk) WriteStable(p []byte, at int64) error {
	return d.disks.Write(d.ctx, d.disk.Name, d.disk.Path, cache.HeaderBytes+at, p)
}

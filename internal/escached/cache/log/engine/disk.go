package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
)

// superblocks is the length of the log's superblocks, in bytes. They follow escached's header.
const superblocks = record.Superblocks * record.BlockBytes

// Wipe implements cache.Engine. It also forgets what an earlier process has answered: that was of this
// disk, too.
func (e *Engine) Wipe(ctx context.Context, disk cache.Disk) error {
	if _, err := e.plans.get(disk.Name); errors.Is(err, cache.ErrAbsent) {
		if err := e.plans.drop(disk.Name, ".memory"); err != nil {
			return fmt.Errorf("remove the memory of an earlier process: %w", err)
		}
	}
	return e.disks.Write(ctx, disk.Name, disk.Path, 0, make([]byte, cache.HeaderBytes+superblocks))
}

// Unused implements cache.Engine. The header is written before anything else, but a resync need not copy
// it first.
func (e *Engine) Unused(ctx context.Context, disk cache.Disk) (bool, error) {
	header, super, err := e.start(ctx, disk)
	return err == nil && cache.Blank(header) && cache.Blank(super), err
}

// start reads escached's header and the superblocks of a disk.
func (e *Engine) start(ctx context.Context, disk cache.Disk) (header, super []byte, err error) {
	blocks, err := e.disks.Read(ctx, disk.Name, disk.Path, append([]int64{0}, blocksOf(cache.HeaderBytes, superblocks)...)...)
	if err != nil {
		return nil, nil, err
	}
	return blocks[0], slices.Concat(blocks[1:]...), nil
}

// blocksOf returns the offsets of the blocks in n bytes of a disk.
func blocksOf(offset, n int64) (offsets []int64) {
	for at := offset; at < offset+n; at += cache.BlockBytes {
		offsets = append(offsets, at)
	}
	return offsets
}

// dirtyQuery is the name under which child.Main must know the query.
const dirtyQuery = "log-dirty"

const (
	// slowBytesPerSecond is how much of a log is read in a second at least: a slow disk gives 100 MiB/s, and four volumes
	// are read at once when a host starts.
	slowBytesPerSecond = 100 << 20 / 4
	// leastReadTime is for a disk that is busy with something else.
	leastReadTime = 2 * time.Minute
)

// ReadTime implements cache.Engine. All of a disk can be log that is not in the image.
func (*Engine) ReadTime(diskBytes int64) time.Duration {
	return leastReadTime + time.Duration(max(0, diskBytes)/slowBytesPerSecond)*time.Second
}

// Dirty implements cache.Engine. It reads the whole log, in a child.
func (e *Engine) Dirty(ctx context.Context, disk cache.Disk) (int64, error) {
	bytes, err := e.kernel.Bytes(disk.Path)
	if err != nil {
		return 0, err
	}
	return cache.CountDirty(ctx, e.disks, disk, dirtyQuery, e.ReadTime(bytes))
}

// dirtyOf counts the dirty bytes on a disk. Without a log a disk is empty only if it was not formatted.
func dirtyOf(device io.ReaderAt) (int64, error) {
	block := ring.AlignedBytes(cache.BlockBytes)
	if _, err := device.ReadAt(block, 0); err != nil {
		return 0, fmt.Errorf("read header: %w", err)
	}
	formatted, err := cache.Formatted(block)
	if err != nil {
		return 0, err
	}
	log, losses, err := ring.Inspect(readOnly{device})
	switch {
	case errors.Is(err, ring.ErrNoLog) && !formatted:
		return 0, blankSuper(device)
	case errors.Is(err, ring.ErrNoLog):
		return 0, fmt.Errorf("%w: it was formatted, but %w", cache.ErrCorrupt, err)
	case err != nil:
		return 0, err
	case len(losses) > 0:
		return 0, fmt.Errorf("%w: acknowledged data is lost: %s (%d in all)", cache.ErrCorrupt, losses[0], len(losses))
	}
	return int64(log.State().Dirty) * record.BlockBytes, nil
}

// blankSuper returns an error unless the superblocks of a disk that was never formatted are blank.
func blankSuper(device io.ReaderAt) error {
	super := ring.AlignedBytes(superblocks)
	if _, err := device.ReadAt(super, cache.HeaderBytes); err != nil {
		return fmt.Errorf("read superblocks: %w", err)
	}
	if !cache.Blank(super) {
		return fmt.Errorf("%w: what is on it is no log", cache.ErrCorrupt)
	}
	return nil
}

// readOnly is the log's part of a disk.
type readOnly struct{ io.ReaderAt }

func (r readOnly) ReadAt(p []byte, at int64) (int, error) {
	return r.ReaderAt.ReadAt(p, cache.HeaderBytes+at)
}

func (readOnly) WriteStable([]byte, int64) error { return errors.New("the disk is only read here") }

// Check implements cache.Engine. It reads the whole log, in a child. As long as it has not, nobody
// knows that the log is in order: whoever takes it for that may overwrite the good copy with it.
func (e *Engine) Check(ctx context.Context, disk cache.Disk, id cache.Identity, usedHere bool) error {
	format, err := e.judge(ctx, disk, id, usedHere)
	if err == nil && !format {
		_, err = e.Dirty(ctx, disk)
	}
	if errors.Is(err, command.ErrTimeout) || errors.Is(err, command.ErrStuck) {
		return fmt.Errorf("%w: the log was not read to its end; repeat the call: %w", cache.ErrUnchecked, err)
	}
	return err
}

// judge decides whether a disk may be formatted. If not, and without an error, it has a log. What is in
// the log is read when it is opened.
func (e *Engine) judge(ctx context.Context, disk cache.Disk, id cache.Identity, usedHere bool) (format bool, err error) {
	header, super, err := e.start(ctx, disk)
	if err != nil {
		return false, err
	}
	if format, err = id.Judge(header, usedHere); err != nil || format {
		return format, err
	}
	for at := 0; at < len(super); at += record.BlockBytes {
		if _, err := record.DecodeSuperblock(super[at:][:record.BlockBytes]); err == nil {
			return false, nil
		}
	}
	return false, fmt.Errorf("%w: it was formatted, but has no log; data that was not written back is lost, and the disk is not "+
		"formatted again", cache.ErrCorrupt)
}

// Prepare implements cache.Engine. The header says whose the disk is before anything else is on it, and
// that it is formatted before anyone can write through it.
func (e *Engine) Prepare(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
	format, err := e.judge(ctx, s.Disk, id, usedHere)
	if err != nil || !format {
		return err
	}
	if err := process.CheckBytes(s.Bytes); err != nil {
		return err
	}
	bytes, err := e.kernel.Bytes(s.Disk.Path)
	if err != nil {
		return err
	}
	header := cache.Header{Identity: id}
	if err := header.Write(ctx, e.disks, s.Disk); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/header_written")
	if err := ring.Format(onDisk{ctx, e.disks, s.Disk}, newVolume(), bytes-cache.HeaderBytes); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/formatting")
	header.Formatted = true
	if err := header.Write(ctx, e.disks, s.Disk); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/header_formatted")
	return nil
}

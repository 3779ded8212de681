package writecache

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
)

// The kernel formats a disk with a blank superblock when it assembles a cache on it. That happens
// once, under a name of its own. As long as the device of the cache's own name has never existed,
// nobody can have written through it, and an interrupted format may be repeated.
const formattingSuffix = "-new"

func formatting(name string) string { return name + formattingSuffix }
func isFormatting(name string) bool { return strings.HasSuffix(name, formattingSuffix) }

// Check implements cache.Engine.
func (e *Engine) Check(ctx context.Context, disk cache.Disk, id cache.Identity, usedHere bool) error {
	_, _, err := e.judge(ctx, disk, id, usedHere)
	return err
}

// Prepare implements cache.Engine.
func (e *Engine) Prepare(ctx context.Context, s cache.Spec, id cache.Identity, usedHere bool) error {
	format, blank, err := e.judge(ctx, s.Disk, id, usedHere)
	if err != nil || !format {
		return err
	}
	return e.format(ctx, s, cache.Header{Identity: id}, blank)
}

// judge decides whether a disk may be formatted. If not, and without an error, its cache can be used. blank
// is true if the superblock is.
func (e *Engine) judge(ctx context.Context, disk cache.Disk, id cache.Identity, usedHere bool) (format, blank bool, err error) {
	header, superblock, err := e.start(ctx, disk)
	if err != nil {
		return false, false, err
	}
	if format, err = id.Judge(header, usedHere); err != nil || format {
		return format, cache.Blank(superblock), err
	}
	if err := mustBeSuperblock(superblock); err != nil {
		return false, false, fmt.Errorf("it was formatted, but %w; "+
			"data that was not written back is lost, and the disk is not formatted again", err)
	}
	return false, false, nil
}

// start reads escached's header and the superblock of a disk.
func (e *Engine) start(ctx context.Context, disk cache.Disk) (header, superblock []byte, err error) {
	blocks, err := e.disks.Read(ctx, disk.Name, disk.Path, 0, superblockAt)
	if err != nil {
		return nil, nil, err
	}
	return blocks[0], blocks[1], nil
}

// mustBeSuperblock returns an error unless a block is the superblock of a cache.
func mustBeSuperblock(block []byte) error {
	_, blank, err := parseSuperblock(block)
	if blank {
		return fmt.Errorf("%w: it is blank", errSuperblock)
	}
	return err
}

// format has the kernel format the disk. The header says whose the disk is before anything else is
// on it, and that it is formatted before anyone can write through it. blank is true if the superblock is:
// only an interrupted formatting leaves another one.
func (e *Engine) format(ctx context.Context, s cache.Spec, header cache.Header, blank bool) error {
	name := s.Disk.Name
	if err := header.Write(ctx, e.disks, s.Disk); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/header_written")
	if !blank {
		if err := e.disks.Write(ctx, name, s.Disk.Path, superblockAt, make([]byte, cache.BlockBytes)); err != nil {
			return err
		}
		crashpoint.Reach("dev_connect/superblock_cleared")
	}
	if err := e.dm.Create(ctx, name, formatting(name), tableOf(s).String()); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/formatting")
	if err := e.remove(ctx, name, formatting(name)); err != nil {
		return err
	}
	made, err := e.disks.Read(ctx, name, s.Disk.Path, superblockAt)
	if err != nil {
		return err
	}
	_, blank, err = parseSuperblock(made[0])
	if blank {
		err = errors.New("it is blank")
	}
	if err != nil {
		return fmt.Errorf("the kernel left no superblock after formatting (%v)", err) //nolint:errorlint // not ErrCorrupt: nothing is lost
	}
	header.Formatted = true
	if err := header.Write(ctx, e.disks, s.Disk); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/header_formatted")
	return nil
}

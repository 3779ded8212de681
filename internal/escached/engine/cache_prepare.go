package engine

import (
	"context"
	"fmt"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/krbd"
)

// formatting is the name under which a cache is assembled once, to let the kernel format it. Nobody can have written
// through it when the header says "formatted": the device of the volume's own name did not exist before.
func formatting(name string) string { return name + "-new" }

// prepareCache checks what is on the replicated device before the kernel gets it, and formats a cache nobody has used.
func (e *Engine) prepareCache(ctx context.Context, v volume, image krbd.Device, table writecache.Table) error {
	start, err := e.Disks.Read(ctx, v.name(), drbdDevice(v), 0, writecache.HeaderBytes+writecache.BlockBytes)
	if err != nil {
		return err
	}
	header, err := writecache.ParseHeader(start[:writecache.BlockBytes])
	if err != nil {
		return fmt.Errorf("%s/%s: %w; the cache cannot be used", v.Pool, v.Image, err)
	}
	want := writecache.Header{Pool: v.Pool, Image: v.Image, ImageID: image.ImageID}
	switch {
	case header == nil && v.Formatted:
		return v.fail(escache.CodeCacheCorrupt,
			"the cache was used on %s, but its header is blank now: what was not written back is lost; discard the replicas to start anew",
			e.cfg.Node)
	case header == nil:
		return e.formatCache(ctx, v, want, table)
	case header.Pool != want.Pool || header.Image != want.Image || header.ImageID != want.ImageID:
		return fail(escache.CodeIdentityMismatch, "%s/%s (id %s): the cache belongs to %s/%s (id %s)",
			v.Pool, v.Image, image.ImageID, header.Pool, header.Image, header.ImageID)
	case !header.Formatted:
		return e.formatCache(ctx, v, want, table)
	}
	_, blank, err := writecache.ParseSuperblock(start[writecache.HeaderBytes:])
	if blank {
		err = fmt.Errorf("%w: it is blank", writecache.ErrSuperblock)
	}
	if err != nil {
		return fmt.Errorf("%s/%s: the cache was formatted, but %w; what was not written back is lost, it is not formatted again",
			v.Pool, v.Image, err)
	}
	return nil
}

func (e *Engine) formatCache(ctx context.Context, v volume, header writecache.Header, table writecache.Table) error {
	write := func(h writecache.Header) error {
		block, err := h.Block()
		if err != nil {
			return err
		}
		return e.Disks.Write(ctx, v.name(), drbdDevice(v), 0, block)
	}
	if err := write(header); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/header_written")
	blank := make([]byte, writecache.BlockBytes)
	if err := e.Disks.Write(ctx, v.name(), drbdDevice(v), writecache.HeaderBytes, blank); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/superblock_cleared")
	if err := e.Caches.Create(ctx, formatting(v.name()), table); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/formatting")
	if err := e.Caches.Remove(ctx, formatting(v.name())); err != nil {
		return err
	}
	block, err := e.Disks.Read(ctx, v.name(), drbdDevice(v), writecache.HeaderBytes, writecache.BlockBytes)
	if err != nil {
		return err
	}
	if _, blank, err := writecache.ParseSuperblock(block); err != nil || blank {
		return v.fail(escache.CodeInternal, "the kernel left no superblock after formatting (%v)", err)
	}
	header.Formatted = true
	if err := write(header); err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/header_formatted")
	return nil
}

package labtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/escache/escache-csi/api/escache"
)

// Devices uses block devices on a host, as the conformance suite wants to.
type Devices struct{ Host *Host }

const sector = 4096

// Write writes data and returns when the device has it for good.
func (d Devices) Write(ctx context.Context, device string, offset int64, data []byte) error {
	_, err := d.Host.Try(ctx, bytes.NewReader(data), "dd", "of="+device,
		fmt.Sprintf("bs=%d", sector), fmt.Sprintf("seek=%d", offset/sector),
		"iflag=fullblock", "oflag=direct", "conv=notrunc,fsync")
	return err
}

// Read reads past the page cache.
func (d Devices) Read(ctx context.Context, device string, offset, length int64) ([]byte, error) {
	var data bytes.Buffer
	err := d.Host.exec(ctx, nil, &data, io.Discard, "dd", "if="+device, fmt.Sprintf("bs=%d", sector), fmt.Sprintf("skip=%d", offset/sector),
		fmt.Sprintf("count=%d", length/sector), "iflag=direct")
	if err == nil && int64(data.Len()) != length {
		err = fmt.Errorf("%s: %d of %d bytes at %d", device, data.Len(), length, offset)
	}
	return data.Bytes(), err
}

// Open keeps a device open until the result is closed.
func (d Devices) Open(ctx context.Context, device string) (io.Closer, error) {
	stdin, closer := io.Pipe()
	opened, lines := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := d.Host.exec(context.WithoutCancel(ctx), stdin, lines, io.Discard, "sh", "-c", `exec 3<"$0" && echo open && cat`, device)
		lines.CloseWithError(errors.Join(err, io.EOF))
		stdin.CloseWithError(errors.Join(err, io.EOF))
		ended <- err
	}()
	if _, err := io.ReadFull(opened, make([]byte, len("open\n"))); err != nil {
		closer.Close()
		return nil, fmt.Errorf("open %s on %s: %w", device, d.Host.Name, err)
	}
	return closeFunc(sync.OnceValue(func() error {
		closer.Close()
		return <-ended
	})), nil
}

// Size is the device's size in bytes.
func (d Devices) Size(ctx context.Context, device string) (int64, error) {
	out, err := d.Host.Try(ctx, nil, "blockdev", "--getsize64", device)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(out, 10, 64)
}

type closeFunc func() error

func (f closeFunc) Close() error { return f() }

// Storage is the lab's Ceph, as the conformance suite wants it.
type Storage struct {
	Lab *Lab
	// Stranger is the host that takes images away: one that has no replica.
	Stranger *Host
}

func imageSpec(ref escache.VolumeRef) string { return ref.Pool + "/" + ref.Image }

// Create makes an image.
func (s Storage) Create(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) (string, error) {
	return createImage(ctx, ref, sizeBytes)
}

// Grow makes an image larger.
func (s Storage) Grow(ctx context.Context, ref escache.VolumeRef, sizeBytes int64) error {
	return s.Lab.grow(ctx, ref, sizeBytes)
}

// Remove removes an image; one that is not there is no error.
func (s Storage) Remove(ctx context.Context, ref escache.VolumeRef) error {
	_, err := command(ctx, "rbd", "--no-progress", "rm", imageSpec(ref))
	if err != nil && strings.Contains(err.Error(), "No such file or directory") {
		return nil
	}
	return err
}

// Occupy maps the image on the stranger, which holds its lock until the result is closed.
func (s Storage) Occupy(ctx context.Context, ref escache.VolumeRef) (io.Closer, error) {
	_, id, err := s.Stranger.mapRaw(ctx, ref, "-", "noshare,exclusive")
	if err != nil {
		return nil, err
	}
	return closeFunc(sync.OnceValue(func() error { return s.Stranger.unmapRaw(context.WithoutCancel(ctx), id) })), nil
}

// Stall makes writes to Ceph hang until the result is closed.
func (s Storage) Stall(ctx context.Context) (io.Closer, error) {
	if err := s.Lab.client.StallCeph(ctx); err != nil {
		return nil, err
	}
	return closeFunc(func() error { return s.Lab.client.ResumeCeph(context.WithoutCancel(ctx)) }), nil
}

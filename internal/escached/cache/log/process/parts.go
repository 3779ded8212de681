package process

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/blockfile"
	"github.com/escache/escache-csi/internal/escached/cache/log/device"
	"github.com/escache/escache-csi/internal/escached/cache/log/memory"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
	"github.com/escache/escache-csi/internal/escached/cache/log/ring"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// lockTimeout is how long a process waits for the one before: one that was killed may still have a write under way.
	lockTimeout = time.Minute
	lockEvery   = 20 * time.Millisecond
)

// parts are what a volume is made of: opened, and this process's alone.
type parts struct {
	memory   *memory.Memory
	disk     *blockfile.File
	image    *blockfile.File
	number   string // of the image's device
	device   *device.Device
	losses   []string
	recovery time.Duration
}

// logDisk is the part of a cache's disk behind the header.
type logDisk struct{ *blockfile.File }

func (d logDisk) ReadAt(p []byte, at int64) (int, error) {
	return d.File.ReadAt(p, at+cache.HeaderBytes)
}

func (d logDisk) WriteStable(p []byte, at int64) error {
	return d.File.WriteStable(p, at+cache.HeaderBytes)
}

// openParts opens a volume. As long as another process has the memory, or one of the devices, it waits.
//
// Three locks keep two processes from writing to one log: the lock of the memory's file, which the kernel holds until the last write of a
// killed process is done; the disk, which is opened for this process alone (O_EXCL on a block device, DRBD's included); and the image in
// the same way. The last two also hold if somebody gives two processes different memories.
func openParts(ctx context.Context, c Config) (*parts, error) {
	p := &parts{}
	err := p.open(ctx, c)
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *parts) open(ctx context.Context, c Config) error {
	path, number, err := c.origin()
	if err != nil {
		return err
	}
	p.number = number
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if p.memory, err = untilFree(ctx, memory.ErrInUse, func() (*memory.Memory, error) { return memory.Open(c.Memory) }); err != nil {
		return fmt.Errorf("take the volume's memory: %w", err)
	}
	if p.disk, err = untilFree(ctx, unix.EBUSY, func() (*blockfile.File, error) { return blockfile.OpenLog(c.Disk) }); err != nil {
		return fmt.Errorf("open the cache's disk: %w", err)
	}
	if p.image, err = untilFree(ctx, unix.EBUSY, func() (*blockfile.File, error) { return blockfile.OpenImage(path) }); err != nil {
		return fmt.Errorf("open the image: %w", err)
	}
	return p.recover(c)
}

// untilFree repeats open while somebody else has the thing.
func untilFree[T any](ctx context.Context, busy error, open func() (T, error)) (T, error) {
	for {
		t, err := open()
		if !errors.Is(err, busy) {
			return t, err
		}
		if pause.For(ctx, lockEvery) != nil {
			return t, fmt.Errorf("another process has it and does not end: %w", err)
		}
	}
}

// recover finds what earlier processes have answered.
func (p *parts) recover(c Config) error {
	block := ring.AlignedBytes(record.BlockBytes)
	if _, err := p.disk.ReadAt(block, 0); err != nil {
		return fmt.Errorf("read the header of the cache's disk: %w", err)
	}
	format, err := c.Identity.Judge(block, true)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Disk, err)
	}
	if format {
		return fmt.Errorf("%w: %s was never formatted to the end", cache.ErrCorrupt, c.Disk)
	}
	begun := time.Now()
	d, losses, err := device.Open(logDisk{p.disk}, p.image, p.memory)
	if err != nil {
		return fmt.Errorf("recover the log on %s: %w", c.Disk, err)
	}
	p.device, p.recovery = d, time.Since(begun)
	for _, l := range losses {
		p.losses = append(p.losses, l.String())
	}
	if len(losses) > 0 && !c.AcceptLosses {
		return lossesIn(p.losses)
	}
	return nil
}

// lossesIn is the error for losses. escached knows it by its last words, so they come after a list of any length.
func lossesIn(losses []string) error {
	const most = 10
	list := strings.Join(losses[:min(len(losses), most)], "; ")
	return fmt.Errorf("%s (%d in all); what is left is served with --accept-losses: %w", list, len(losses), ErrLosses)
}

// close lets the next process have the volume. The device writes nothing any more when it is called.
func (p *parts) close() error {
	var errs []error
	if p.device != nil {
		p.device.Close()
		p.device.Wait()
	}
	if p.image != nil {
		errs = append(errs, p.image.Close())
	}
	if p.disk != nil {
		errs = append(errs, p.disk.Close())
	}
	if p.memory != nil {
		errs = append(errs, p.memory.Close()) // the last one: it is the lock
	}
	return errors.Join(errs...)
}

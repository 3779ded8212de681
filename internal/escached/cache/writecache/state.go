package writecache

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// device is one assembled cache: dm-writecache's device, completed with what the device in front of
// it says.
type device struct {
	table
	counters

	open      int
	suspended bool
}

// States implements cache.Engine.
func (e *Engine) States(ctx context.Context, prefix string) (map[string]cache.State, error) {
	devices, err := e.devices(ctx, prefix)
	if err != nil {
		return nil, err
	}
	out := map[string]cache.State{}
	for name, d := range devices {
		if !isFormatting(name) {
			out[name] = d.state(name)
		}
	}
	return out, nil
}

func (d device) state(name string) cache.State {
	s := cache.State{
		Path: devmapper.Node(front(name)), Origin: d.origin, Bytes: d.bytes, Options: d.options, Open: d.open,
		Known: d.blocks > 0, Failed: d.failed, Held: d.suspended, Counters: d.Counters,
	}
	if s.Known { // no blocks at all: the kernel cannot say
		s.Dirty = (d.blocks - d.free) * cache.BlockBytes
		s.Free, s.WritingBack = d.free*cache.BlockBytes, d.writeback*cache.BlockBytes
	}
	return s
}

// devices reads all caches whose name has the prefix.
func (e *Engine) devices(ctx context.Context, prefix string) (map[string]device, error) {
	out := map[string]device{}
	err := e.dm.Devices(ctx, prefix, func(all map[string]devmapper.Device) error {
		for name, below := range all {
			if below.Target != target || isFront(name) {
				continue
			}
			d, err := parseDevice(below)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if err := e.seenFromFront(&d, name, all); err != nil {
				return err
			}
			out[name] = d
		}
		return nil
	})
	if err != nil {
		return nil, err // not out: after a timeout it may still be written to
	}
	return out, nil
}

func parseDevice(below devmapper.Device) (d device, err error) {
	d.open, d.suspended = below.Open, below.Suspended
	if d.table, err = parseTable(below.Sectors*devmapper.SectorBytes, below.Table); err != nil {
		return d, fmt.Errorf("table: %w", err)
	}
	if d.counters, err = parseCounters(below.Status); err != nil {
		return d, fmt.Errorf("status: %w", err)
	}
	return d, nil
}

// device reads one cache. It returns cache.ErrAbsent if there is none.
func (e *Engine) device(ctx context.Context, name string) (device, error) {
	devices, err := e.devices(ctx, name)
	if err != nil {
		return device{}, err
	}
	d, ok := devices[name]
	if !ok {
		return d, fmt.Errorf("%s: %w", name, cache.ErrAbsent)
	}
	return d, nil
}

// below reads one device of device-mapper, whatever its target. there is false if it is gone.
func (e *Engine) below(ctx context.Context, name string) (d devmapper.Device, there bool, err error) {
	found := make(chan devmapper.Device, 1)
	err = e.dm.Devices(ctx, name, func(all map[string]devmapper.Device) error {
		if d, ok := all[name]; ok {
			found <- d
		}
		return nil
	})
	if err != nil {
		return d, false, err
	}
	select {
	case d = <-found:
		return d, true, nil
	default:
		return d, false, nil
	}
}

// opened adds cache.ErrOpen to device-mapper's error for a device that is open.
func opened(err error) error {
	if errors.Is(err, devmapper.ErrOpen) {
		return fmt.Errorf("%w: %w", cache.ErrOpen, err)
	}
	return err
}

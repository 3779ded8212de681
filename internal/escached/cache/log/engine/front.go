package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

const frontSuffix = "-log"

func front(name string) string { return name + frontSuffix }

// fronts returns the devices in front, by the names of their volumes.
func (e *Engine) fronts(ctx context.Context, prefix string) (map[string]devmapper.Device, error) {
	found := make(chan map[string]devmapper.Device, 1)
	err := e.dm.Devices(ctx, prefix, func(all map[string]devmapper.Device) error {
		out := map[string]devmapper.Device{}
		for device, d := range all {
			if name, is := strings.CutSuffix(device, frontSuffix); is {
				out[name] = d
			}
		}
		found <- out
		return nil
	})
	if err != nil {
		return nil, err
	}
	return <-found, nil
}

// expose makes the device in front of a process's device, or makes it as large as it is to be, under
// running I/O. It does nothing to one that is complete.
func (e *Engine) expose(ctx context.Context, name, device string, bytes int64) error {
	number, err := e.kernel.Number(device)
	if err != nil {
		return err
	}
	fronts, err := e.fronts(ctx, name)
	if err != nil {
		return err
	}
	sectors := bytes / devmapper.SectorBytes
	table := fmt.Sprintf("0 %d linear %s 0", sectors, number)
	have, there := fronts[name]
	switch {
	case !there:
		return e.dm.Create(ctx, name, front(name), table)
	case have.Sectors == sectors && have.Table == number+" 0" && !have.Suspended:
		return nil
	}
	if err := e.dm.SuspendNoFlush(ctx, name, front(name)); err != nil {
		return err
	}
	if err := e.dm.Load(ctx, name, front(name), table); err != nil {
		return errors.Join(err, e.dm.Resume(ctx, name, front(name)))
	}
	return e.dm.Resume(ctx, name, front(name))
}

// unsuspend lets I/O of the device in front go on.
func (e *Engine) unsuspend(ctx context.Context, name string) error {
	fronts, err := e.fronts(ctx, name)
	if err != nil || !fronts[name].Suspended {
		return err
	}
	return e.dm.Resume(ctx, name, front(name))
}

// hide removes the device in front. It returns cache.ErrOpen while someone has it open.
func (e *Engine) hide(ctx context.Context, name string) error {
	fronts, err := e.fronts(ctx, name)
	if err != nil {
		return err
	}
	if _, there := fronts[name]; !there {
		return nil
	}
	err = e.dm.Remove(ctx, name, front(name))
	if errors.Is(err, devmapper.ErrOpen) {
		return fmt.Errorf("%w: %w", cache.ErrOpen, err)
	}
	return err
}

package writecache

import (
	"context"
	"errors"
	"fmt"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// Assemble implements cache.Engine. Prepare must have checked the disk: the kernel formats a blank
// one.
func (e *Engine) Assemble(ctx context.Context, s cache.Spec) (path string, err error) {
	name, t := s.Disk.Name, tableOf(s)
	if err := e.dm.Create(ctx, name, name, t.String()); err != nil {
		return "", err
	}
	crashpoint.Reach("dev_connect/assembled")
	if err = e.assembledRight(ctx, name); err == nil {
		err = e.expose(ctx, name, t.bytes)
	}
	if err != nil {
		return "", errors.Join(err, e.Remove(ctx, name))
	}
	return devmapper.Node(front(name)), nil
}

// assembledRight checks a new device before anyone uses it: the kernel also creates a device on an
// origin or disk that fails.
func (e *Engine) assembledRight(ctx context.Context, name string) error {
	d, err := e.device(ctx, name)
	switch {
	case errors.Is(err, cache.ErrAbsent):
		return errors.New("the device vanished while it was made")
	case err != nil:
		return err
	case d.failed:
		return fmt.Errorf("%w: dm-writecache reports an error on the new device; see the kernel's log", cache.ErrFailed)
	}
	return nil
}

// Remove implements cache.Engine. It also removes the device under which a killed Prepare
// formatted.
func (e *Engine) Remove(ctx context.Context, name string) error {
	return errors.Join(e.remove(ctx, name, name), e.remove(ctx, name, formatting(name)))
}

// Fail implements cache.Engine. The disk's errors reach the users, unless the device in front is suspended, as during a hold. The
// cache behind it stays suspended: let go on, it could still write to the image.
func (e *Engine) Fail(ctx context.Context, name string) error {
	f, there, err := e.below(ctx, front(name))
	if err != nil || !there || !f.Suspended {
		return err
	}
	if err := e.dm.Load(ctx, name, front(name), fmt.Sprintf("0 %d error", f.Sectors)); err != nil {
		return err
	}
	return e.dm.Resume(ctx, name, front(name))
}

// Stop implements cache.Engine. The kernel has no answers that are not on the disk.
func (e *Engine) Stop(ctx context.Context, name string) error { return e.Remove(ctx, name) }

// remove removes a dm-writecache device, after the devices in front of it.
func (e *Engine) remove(ctx context.Context, volume, device string) error {
	_, exposed, err := e.below(ctx, front(device))
	if err != nil {
		return err
	}
	if exposed {
		if err := opened(e.dm.Remove(ctx, volume, front(device))); err != nil {
			return err
		}
		crashpoint.Reach("remove/front")
	}
	_, there, err := e.below(ctx, device)
	if err != nil || !there {
		return err
	}
	if err := e.loops.Detach(ctx, volume, devmapper.Node(device)); err != nil {
		return err
	}
	crashpoint.Reach("remove/loop")
	return opened(e.dm.Remove(ctx, volume, device))
}

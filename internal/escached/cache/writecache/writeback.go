package writecache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// messageTimeout bounds how long dmsetup waits for the answer to a flush.
const messageTimeout = 24 * time.Hour

// WriteBack implements cache.Engine. The kernel answers the message when all is written, however
// long the origin takes. The message cannot be cancelled.
func (e *Engine) WriteBack(ctx context.Context, name string) error {
	if _, err := e.device(ctx, name); err != nil {
		return err
	}
	return e.dm.Message(ctx, name, name, "flush", messageTimeout)
}

// Hold implements cache.Engine: it flushes once more and suspends with the filesystem frozen, so
// the origin is then complete and consistent. It does not suspend a device with an error: that
// would abort ext4's journal. It always stops all I/O.
func (e *Engine) Hold(ctx context.Context, name string, _ bool) error {
	d, err := e.device(ctx, name)
	switch {
	case err != nil:
		return err
	case d.failed:
		return fmt.Errorf("%w: it failed before this hold", cache.ErrFailed)
	}
	// The filesystem is on the device in front. What it still writes must get through before
	// dm-writecache is suspended.
	if err := e.dm.Suspend(ctx, name, front(name)); err != nil {
		return err
	}
	if err := e.dm.Message(ctx, name, name, "flush_on_suspend", 0); err != nil {
		return err
	}
	if err := e.dm.Suspend(ctx, name, name); err != nil {
		return err
	}
	return e.heldClean(ctx, name)
}

// heldClean checks the suspended device: suspending succeeds even if the origin fails.
func (e *Engine) heldClean(ctx context.Context, name string) error {
	d, err := e.device(ctx, name)
	if err != nil {
		return err
	}
	s := d.state(name)
	switch {
	case !s.Held:
		return errors.New("the device is not suspended after suspending it")
	case s.Failed:
		return fmt.Errorf("%w while suspending", cache.ErrFailed)
	case !s.Clean():
		return fmt.Errorf("%w when suspended", cache.ErrDirty)
	}
	return nil
}

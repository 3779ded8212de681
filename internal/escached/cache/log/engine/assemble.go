package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// undoTimeout bounds taking back what failed. The caller's time may be over by then.
const undoTimeout = time.Minute

// Assemble implements cache.Engine. It fails with cache.ErrCorrupt, and leaves no device, if the log has
// lost acknowledged data. While the process still reads a long log, plan and process stay: who began again
// would begin at zero. What its process says in the end is heard by the next Resume.
func (e *Engine) Assemble(ctx context.Context, s cache.Spec) (path string, err error) {
	name := s.Disk.Name
	if _, err := e.plans.get(name); !errors.Is(err, cache.ErrAbsent) {
		return "", errors.Join(err, fmt.Errorf("%s is assembled already", name))
	}
	p, err := e.planOf(ctx, s)
	if err != nil {
		return "", err
	}
	if err := e.plans.put(name, p); err != nil {
		return "", err
	}
	crashpoint.Reach("dev_connect/planned")
	switch err = e.assemble(ctx, name, p); {
	case errors.Is(err, cache.ErrRecovering):
		return "", err
	case err != nil:
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return "", errors.Join(err, e.Remove(ctx, name))
	}
	return devmapper.Node(front(name)), nil
}

// planOf rounds the size down to whole blocks.
func (e *Engine) planOf(ctx context.Context, s cache.Spec) (p plan, err error) {
	p = plan{Disk: s.Disk.Path, Bytes: s.Bytes / cache.BlockBytes * cache.BlockBytes, Options: s.Options}
	if p.Options.Mode == "" {
		p.Options.Mode = cache.Writeback
	}
	if p.Origin, err = e.kernel.Number(s.Origin); err != nil {
		return p, err
	}
	header, err := e.disks.Read(ctx, s.Disk.Name, s.Disk.Path, 0)
	if err != nil {
		return p, err
	}
	p.Of, err = cache.IdentityOn(header[0])
	return p, err
}

func (e *Engine) assemble(ctx context.Context, name string, p plan) error {
	if err := e.processes.Forget(name); err != nil { // or lossOf takes the words of an earlier process for this one's
		return err
	}
	status, err := e.serve(ctx, name, p)
	if err != nil {
		return err
	}
	crashpoint.Reach("dev_connect/assembled")
	return e.expose(ctx, name, status.Device, p.Bytes)
}

// Stop implements cache.Engine. Without a plan there is nothing that could have answered.
func (e *Engine) Stop(ctx context.Context, name string) error {
	_, err := e.plans.get(name)
	return e.remove(ctx, name, errors.Is(err, cache.ErrAbsent))
}

// Fail implements cache.Engine. I/O to an NBD device waits for another process when its own has died. It
// fails once the device is disconnected, and goes that far only if a pause does not keep it.
func (e *Engine) Fail(ctx context.Context, name string) error {
	if err := e.processes.Kill(ctx, name); err != nil {
		return err
	}
	if err := e.disconnect(ctx, name); err != nil {
		return err
	}
	return e.unsuspend(ctx, name)
}

// Remove implements cache.Engine.
func (e *Engine) Remove(ctx context.Context, name string) error { return e.remove(ctx, name, true) }

// remove removes a cache. The plan goes last: until then the cache is there. unclean allows that the log
// lacks what the process has answered.
func (e *Engine) remove(ctx context.Context, name string, unclean bool) error {
	if err := e.hide(ctx, name); err != nil {
		return err
	}
	crashpoint.Reach("remove/hidden")
	clean, err := e.end(ctx, name)
	if err != nil {
		return err
	}
	crashpoint.Reach("remove/ended")
	if !clean && !unclean {
		return fmt.Errorf("%w: its process has died, and perhaps had answered what is not in the log", cache.ErrUnserved)
	}
	suffixes := []string{".sock", ".memory.options"}
	if clean { // or the next process on this host needs it
		suffixes = append(suffixes, ".memory")
	}
	if err := e.plans.drop(name, append(suffixes, planSuffix)...); err != nil {
		return fmt.Errorf("remove the plan of a cache: %w", err)
	}
	return e.processes.Forget(name)
}

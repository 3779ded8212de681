// Package writecache drives dm-writecache through dmsetup, and knows what lies on a cache's disk: escached's header and
// the kernel's superblock and entries.
package writecache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// ErrOpen says that the device cannot be removed because somebody has it open.
var ErrOpen = errors.New("the device is open")

// Device is one assembled cache.
type Device struct {
	Table
	Counters

	Open      int
	Suspended bool
}

// Mapper drives the kernel's device-mapper.
type Mapper struct {
	run     command.Runner
	loops   Loops
	control *control
}

// NewMapper returns a Mapper that changes devices by running dmsetup with run.
func NewMapper(run command.Runner, loops Loops) *Mapper {
	return &Mapper{run: run, loops: loops, control: newControl()}
}

// Devices lists every writecache device whose name has the prefix, as it is now. It starts no child, waits for no I/O, and answers
// also while a flush is stuck or I/O frozen.
func (m *Mapper) Devices(ctx context.Context, prefix string) (map[string]Device, error) {
	out := map[string]Device{}
	err := m.control.with(ctx, func(fd int) error {
		names, err := m.control.names(fd, prefix)
		if err != nil {
			return fmt.Errorf("list of devices: %w", err)
		}
		for _, name := range names {
			if isFront(name) {
				continue
			}
			d, ok, err := m.control.device(fd, name)
			if err == nil && ok {
				d, err = m.exposed(fd, name, d)
			}
			if err != nil {
				return err
			}
			if ok {
				out[name] = d
			}
		}
		return nil
	})
	if err != nil {
		return nil, err // not out: after a timeout it may still be written to
	}
	return out, nil
}

// target reads a device's table, if the device is there.
func (m *Mapper) target(ctx context.Context, device string) (t target, there bool, err error) {
	found := make(chan target, 1)
	err = m.control.with(ctx, func(fd int) error {
		t, there, err := m.control.there(fd, device)
		if there {
			found <- t
		}
		return err
	})
	if err != nil {
		return target{}, false, err
	}
	select {
	case t := <-found:
		return t, true, nil
	default:
		return target{}, false, nil
	}
}

// Version is the writecache target's version in the running kernel, "" if it is not loaded.
func (m *Mapper) Version(ctx context.Context) (string, error) {
	found := make(chan string, 1)
	err := m.control.with(ctx, func(fd int) error {
		version, err := m.control.version(fd, "writecache")
		found <- version
		return err
	})
	if err != nil {
		return "", err
	}
	return <-found, nil
}

// Create assembles a cache, for which there is no Path yet. The caller has checked what is on the cache device.
func (m *Mapper) Create(ctx context.Context, name string, t Table) error {
	return m.change(ctx, name, "create", name, "--table", t.String())
}

// Remove takes a cache away, and first what is in front of it. ErrOpen if somebody has it open; removing what is not there succeeds.
func (m *Mapper) Remove(ctx context.Context, name string) error {
	_, exposed, err := m.target(ctx, front(name))
	if err != nil {
		return err
	}
	if exposed {
		if err := m.remove(ctx, name, front(name)); err != nil {
			return err
		}
		crashpoint.Reach("remove/front")
	}
	_, there, err := m.target(ctx, name)
	if err != nil || !there {
		return err
	}
	if err := m.loops.Detach(ctx, name, node(name)); err != nil {
		return err
	}
	crashpoint.Reach("remove/loop")
	return m.remove(ctx, name, name)
}

func (m *Mapper) remove(ctx context.Context, name, device string) error {
	err := m.change(ctx, name, "remove", device)
	switch {
	case err == nil, strings.Contains(err.Error(), "No such device"):
		return nil
	case strings.Contains(err.Error(), "resource busy"), strings.Contains(err.Error(), "in use"):
		return fmt.Errorf("%w: %w", ErrOpen, err)
	}
	return err
}

// Reload puts a table in place of the running one under open files. It is also what clears a sticky error.
//
// The suspension freezes no file system and flushes nothing, and a table is always loaded before the device resumes:
// with an error set, a plain suspend aborts ext4's journal, and a resume without a load makes the cache look empty.
func (m *Mapper) Reload(ctx context.Context, name string, t Table) error {
	if err := m.change(ctx, name, "suspend", "--noflush", "--nolockfs", name); err != nil {
		return err
	}
	crashpoint.Reach("reload/suspended")
	return m.LoadAndResume(ctx, name, t)
}

// LoadAndResume ends a suspension of any kind.
func (m *Mapper) LoadAndResume(ctx context.Context, name string, t Table) error {
	if err := m.change(ctx, name, "load", name, "--table", t.String()); err != nil {
		return err
	}
	crashpoint.Reach("reload/loaded")
	if err := m.change(ctx, name, "resume", name); err != nil {
		return err
	}
	f, there, err := m.target(ctx, front(name))
	if err != nil || !there || !f.suspended {
		return err
	}
	crashpoint.Reach("reload/resumed")
	return m.change(ctx, name, "resume", front(name))
}

// FlushOnce asks the kernel to write back what is dirty now and returns when that is done, which takes as long as the
// origin needs: timeout bounds only when the child is killed. Success does not mean clean.
func (m *Mapper) FlushOnce(ctx context.Context, name string, timeout time.Duration) error {
	_, err := m.run.Run(ctx, command.Command{
		Volume: name, Name: "dmsetup", Args: []string{"message", name, "0", "flush"}, Timeout: timeout,
	})
	return err
}

// Quiesce flushes once more and suspends with the file system frozen: the image is then complete and consistent. The
// caller must see error and dirty counters of the suspended device: a failing origin does not make it fail.
func (m *Mapper) Quiesce(ctx context.Context, name string) error {
	// The file system is on the device in front. What it still writes has to get through before the cache is suspended.
	if err := m.change(ctx, name, "suspend", front(name)); err != nil {
		return err
	}
	if err := m.change(ctx, name, "message", name, "0", "flush_on_suspend"); err != nil {
		return err
	}
	return m.change(ctx, name, "suspend", name)
}

func (m *Mapper) change(ctx context.Context, name string, args ...string) error {
	_, err := m.run.Run(ctx, command.Command{Volume: name, Name: "dmsetup", Args: args})
	return err
}

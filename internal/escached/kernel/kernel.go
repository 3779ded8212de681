// Package kernel loads the kernel modules that escached needs, and reports which of them the running kernel has.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// Kernel reports on the running kernel.
type Kernel struct {
	run    command.Runner
	states replicaStates
	images images
	caches caches
}

// The layers that know their part of the kernel.
type (
	replicaStates interface{ Read() (drbd.Table, error) }
	images        interface{ Available() bool }
	// caches tells which dm-writecache the kernel has loaded, "" for none.
	caches interface {
		Version(ctx context.Context) (string, error)
	}
)

// New returns a Kernel that loads modules through run.
func New(run command.Runner, states replicaStates, images images, caches caches) *Kernel {
	return &Kernel{run: run, states: states, images: images, caches: caches}
}

// Load loads the modules that are neither built in nor loaded yet.
func (k *Kernel) Load(ctx context.Context) error {
	var errs []error
	for _, module := range []string{"drbd", "dm-writecache", "loop", "rbd"} {
		if _, err := os.Stat("/sys/module/" + strings.ReplaceAll(module, "-", "_")); err == nil {
			continue
		}
		if _, err := k.run.Run(ctx, command.Command{Name: "modprobe", Args: []string{module}, Timeout: 20 * time.Second}); err != nil {
			errs = append(errs, fmt.Errorf("load the kernel module %s: %w", module, err))
		}
	}
	return errors.Join(errs...)
}

// Describe returns the versions of the kernel and of its parts. A part that is missing has version "".
func (k *Kernel) Describe(ctx context.Context) escache.Kernel {
	out := escache.Kernel{RBD: k.images.Available()}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		out.Release = strings.TrimSpace(string(release))
	}
	if table, err := k.states.Read(); err == nil {
		out.DRBD = table.Version
	}
	if version, err := k.caches.Version(ctx); err == nil {
		out.Writecache = version
	}
	return out
}

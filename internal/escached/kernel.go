package escached

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
)

// HostKernel looks at the running kernel.
type HostKernel struct {
	run    command.Runner
	states ReplicaStates
	images Images
	caches cacheTarget
}

// cacheTarget tells which dm-writecache the kernel has loaded, "" for none.
type cacheTarget interface {
	Version(ctx context.Context) (string, error)
}

// NewHostKernel returns what tells about the running kernel.
func NewHostKernel(run command.Runner, states ReplicaStates, images Images, caches cacheTarget) *HostKernel {
	return &HostKernel{run: run, states: states, images: images, caches: caches}
}

// Load loads the modules; what is built in or loaded already is left as it is.
func (k *HostKernel) Load(ctx context.Context) error {
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

// Describe lists the parts found; an absent one has version "".
func (k *HostKernel) Describe(ctx context.Context) escache.Kernel {
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

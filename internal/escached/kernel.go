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
}

// NewHostKernel returns what tells about the running kernel.
func NewHostKernel(run command.Runner, states ReplicaStates, images Images) *HostKernel {
	return &HostKernel{run: run, states: states, images: images}
}

// Load loads the modules; what is built in or loaded already is left as it is.
func (k *HostKernel) Load(ctx context.Context) error {
	var errs []error
	for _, module := range []string{"drbd", "dm-writecache", "rbd"} {
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
	res, err := k.run.Run(ctx, command.Command{Name: "dmsetup", Args: []string{"targets"}, Timeout: 10 * time.Second, Query: true})
	if err == nil {
		out.Writecache = targetVersion(string(res.Stdout), "writecache")
	}
	return out
}

// targetVersion finds "writecache       v1.6.0" in `dmsetup targets`.
func targetVersion(targets, name string) string {
	for line := range strings.Lines(targets) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return strings.TrimPrefix(f[1], "v")
		}
	}
	return ""
}

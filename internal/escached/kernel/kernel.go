// Package kernel loads the kernel modules that escached needs, and reports which of them the
// running kernel has.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/drbd"
)

// Kernel loads modules into the running kernel and reports on it.
type Kernel struct {
	run    command.Runner
	states replicaStates
	images images
	caches caches
	others []caches
	// sys is where sysfs is mounted.
	sys string
}

// These layers know which part of the kernel they need.
type (
	replicaStates interface{ Read() (drbd.Table, error) }
	images        interface{ Available() bool }
	// caches is a cache engine. Version returns its version in the kernel, or "" for none.
	// Modules returns its kernel modules, the most important first.
	caches interface {
		Version(ctx context.Context) (string, error)
		Modules() []string
	}
)

// New returns a Kernel that loads modules through run. The host needs the first cache engine. It is healthy
// without the others: they are for those who ask for them.
func New(run command.Runner, states replicaStates, images images, first caches, others ...caches) *Kernel {
	return &Kernel{run: run, states: states, images: images, caches: first, others: others, sys: "/sys"}
}

// Module is a kernel module that escached needs.
type Module struct {
	Name string
	// Err says why it is neither built in nor loaded, and cannot be loaded.
	Err error
}

// Modules loads the modules that are neither built in nor loaded yet, and returns all of them.
func (k *Kernel) Modules(ctx context.Context) []Module {
	var all []Module
	for _, name := range slices.Concat([]string{"drbd"}, k.caches.Modules(), []string{"rbd"}) {
		all = append(all, Module{name, k.load(ctx, name)})
	}
	return all
}

func (k *Kernel) load(ctx context.Context, module string) error {
	if _, err := os.Stat(filepath.Join(k.sys, "module", strings.ReplaceAll(module, "-", "_"))); err == nil {
		return nil
	}
	_, err := k.run.Run(ctx, command.Command{Name: "modprobe", Args: []string{module}, Timeout: 20 * time.Second})
	return err
}

// Load loads the modules that are neither built in nor loaded yet.
func (k *Kernel) Load(ctx context.Context) error {
	var errs []error
	for _, module := range k.Modules(ctx) {
		if module.Err != nil {
			errs = append(errs, fmt.Errorf("load the kernel module %s: %w", module.Name, module.Err))
		}
	}
	for _, other := range k.others {
		for _, module := range other.Modules() {
			_ = k.load(ctx, module) // the engine's version says that it is missing
		}
	}
	return errors.Join(errs...)
}

// Describe returns the parts that the running kernel has, and a sentence for each part that it
// lacks or that escached cannot use. The version of a part that is absent is "".
func (k *Kernel) Describe(ctx context.Context) (found escache.Kernel, missing []string) {
	found.RBD = k.images.Available()
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		found.Release = strings.TrimSpace(string(release))
	}
	if table, err := k.states.Read(); err == nil {
		found.DRBD = table.Version
	}
	if version, err := k.caches.Version(ctx); err == nil {
		found.Writecache = version
	}
	switch {
	case found.DRBD == "":
		missing = append(missing, "the kernel has no DRBD: load the module drbd (package linux-modules of this kernel)")
	case found.DRBD[0] != '8':
		missing = append(missing, fmt.Sprintf("the kernel has DRBD %s; only 8.4, which comes with the kernel, is supported", found.DRBD))
	}
	if found.Writecache == "" {
		module := k.caches.Modules()[0]
		missing = append(missing, fmt.Sprintf("the kernel has no %s: load the module %s", module, module))
	}
	if !found.RBD {
		missing = append(missing, "the kernel has no rbd: load the module rbd")
	}
	return found, missing
}

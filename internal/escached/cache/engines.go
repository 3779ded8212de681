package cache

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Engines are the engines of a host, by name. The tag of a replica says whose its disk is.
type Engines map[escache.Engine]Engine

// Of returns the engine with a name. If the host has none, it returns one whose methods all fail with
// ErrNoEngine.
func (e Engines) Of(name escache.Engine) Engine {
	if engine, ok := e[name]; ok {
		return engine
	}
	return missing{name}
}

// Has returns ErrNoEngine, with what to do, if the host does not have the engine. A host has it also if
// its kernel lacks what the engine needs.
func (e Engines) Has(name escache.Engine) error {
	if _, ok := e[name]; !ok {
		return missing{name}.err()
	}
	return nil
}

// CanRun returns ErrNoEngine, with what to do, if this host cannot run the engine. It starts no child.
func (e Engines) CanRun(ctx context.Context, name escache.Engine) error {
	if err := e.Has(name); err != nil {
		return err
	}
	engine := e[name]
	version, err := engine.Version(ctx)
	if err == nil && version == "" {
		err = fmt.Errorf("%w %s: load %s into the kernel, or put the volume on hosts that have it",
			ErrNoEngine, name, strings.Join(engine.Modules(), " and "))
	}
	return err
}

// Runnable returns the names of the engines that this host can run now, sorted. It starts no child.
func (e Engines) Runnable(ctx context.Context) []escache.Engine {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(e)), func(name escache.Engine) bool { return e.CanRun(ctx, name) != nil })
}

// States is Engine.States over all engines.
func (e Engines) States(ctx context.Context, prefix string) (map[string]State, error) {
	all := map[string]State{}
	for _, name := range slices.Sorted(maps.Keys(e)) {
		states, err := e[name].States(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for volume, state := range states {
			if _, twice := all[volume]; twice {
				return nil, fmt.Errorf("%s is assembled by two cache engines, one of them %s; stop one of the two devices", volume, name)
			}
			all[volume] = state
		}
	}
	return all, nil
}

// missing stands in for an engine that the host does not have. What its disks hold is not known, and
// whether one of its devices is there is not known either, so it says neither.
type missing struct{ name escache.Engine }

func (m missing) err() error {
	return fmt.Errorf("%w %s: install a version of escached that has it, or put the volume on hosts that have it", ErrNoEngine, m.name)
}

func (m missing) Wipe(context.Context, Disk) error                         { return m.err() }
func (m missing) Unused(context.Context, Disk) (bool, error)               { return false, m.err() }
func (m missing) Dirty(context.Context, Disk) (int64, error)               { return 0, m.err() }
func (m missing) CheckOptions(Options) error                               { return m.err() }
func (m missing) Check(context.Context, Disk, Identity, bool) error        { return m.err() }
func (m missing) Prepare(context.Context, Spec, Identity, bool) error      { return m.err() }
func (m missing) Assemble(context.Context, Spec) (string, error)           { return "", m.err() }
func (m missing) Remove(context.Context, string) error                     { return m.err() }
func (m missing) Fail(context.Context, string) error                       { return m.err() }
func (m missing) Stop(context.Context, string) error                       { return m.err() }
func (m missing) States(context.Context, string) (map[string]State, error) { return nil, m.err() }
func (m missing) WriteBack(context.Context, string) error                  { return m.err() }
func (m missing) Retry(context.Context, string) error                      { return m.err() }
func (m missing) SetMode(context.Context, string, Mode) error              { return m.err() }
func (m missing) SetOptions(context.Context, string, Options) error        { return m.err() }
func (m missing) Resize(context.Context, string, int64) error              { return m.err() }
func (m missing) Hold(context.Context, string, bool) error                 { return m.err() }
func (m missing) Resume(context.Context, string) error                     { return m.err() }
func (m missing) Revive(context.Context, string) error                     { return m.err() }

// ReadTime is 0: nothing is read.
func (m missing) ReadTime(int64) time.Duration { return 0 }

// Memory is 0: a volume of this engine is not connected here.
func (m missing) Memory(int64) int64                      { return 0 }
func (m missing) Version(context.Context) (string, error) { return "", nil }
func (m missing) Modules() []string                       { return nil }

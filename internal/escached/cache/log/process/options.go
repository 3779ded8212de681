package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
)

// optionsFile is where the options in effect are, for the next process of the device. It is beside the memory, and lives as long.
func (c Config) optionsFile() string { return c.Memory + ".options" }

// loadOptions returns the options that the process before has saved. It is not told of those that the device was made with.
func (p *Process) loadOptions() (control.Options, error) {
	o := p.config.Options
	data, err := os.ReadFile(p.config.optionsFile())
	if errors.Is(err, fs.ErrNotExist) {
		if p.volume.State().Through { // the memory has kept that
			o.Mode = cache.Writethrough
		}
		return o, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err == nil {
		err = o.Check()
	}
	if err != nil {
		return o, fmt.Errorf("read the options of the process before: %w", err)
	}
	return o, nil
}

// apply puts options into effect, and saves them. An empty mode is write-back, an empty order merged.
func (p *Process) apply(o control.Options) error {
	if o.Mode == "" {
		o.Mode = cache.Writeback
	}
	if o.Order == "" {
		o.Order = control.Merged
	}
	data, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("encode the options: %w", err)
	}
	// A rename, so that a process that is killed leaves the old ones or the new ones. It is on tmpfs: nothing is to be synced.
	next := p.config.optionsFile() + ".new"
	if err := os.WriteFile(next, data, 0o600); err != nil {
		return fmt.Errorf("save the options: %w", err)
	}
	if err := os.Rename(next, p.config.optionsFile()); err != nil {
		return fmt.Errorf("save the options: %w", err)
	}
	p.volume.WriteThrough(o.Mode == cache.Writethrough)
	p.volume.StrictOrder(o.Order == control.Strict)
	if p.back == nil {
		p.back = newWriteBack(p.volume.Device, o, p.log)
	} else {
		p.back.set(o)
	}
	crashpoint.Reach("cache/options-applied")
	return nil
}

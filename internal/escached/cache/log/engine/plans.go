package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/internal/escached/atomicfile"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/listing"
)

// plan says what one cache is to be: it is written before the process is asked, so a change that was
// interrupted is completed from it. A cache exists from its first plan until it is removed.
type plan struct {
	Boot    string         `json:"boot"`
	Disk    string         `json:"disk"`
	Origin  string         `json:"origin"` // MAJOR:MINOR
	Bytes   int64          `json:"bytes"`
	Options cache.Options  `json:"options"` // Mode is never empty
	Of      cache.Identity `json:"of"`
	// Holding is set from before a hold until Resume.
	Holding bool `json:"holding,omitempty"`
	// Paused is set once the image has everything in a hold for which the device in front was suspended before.
	Paused bool `json:"paused,omitempty"`

	// damage says why a plan cannot be read; everything else is empty then, but for the mode.
	damage string
}

// arguments are the command line of the process. The name comes first: package launch finds it there.
func (r plan) arguments(name string, files plans) []string {
	o := control.Of(r.Options)
	return []string{
		"--name", name, "--disk", r.Disk, "--origin", r.Origin, "--bytes", strconv.FormatInt(r.Bytes, 10),
		"--socket", files.socket(name), "--memory", files.memory(name),
		"--pool", r.Of.Pool, "--image", r.Of.Image, "--image-id", r.Of.ImageID,
		"--mode", string(o.Mode), "--high-watermark", strconv.Itoa(o.HighWatermark), "--low-watermark", strconv.Itoa(o.LowWatermark),
		"--max-age-seconds", strconv.Itoa(o.MaxAgeSeconds), "--order", string(o.Order),
	}
}

// plans are the plans of this start of the host.
type plans struct{ dir, boot string }

const (
	planSuffix  = ".json"
	partPattern = ".part-*"
)

func (r plans) file(name, suffix string) string { return filepath.Join(r.dir, name+suffix) }
func (r plans) socket(name string) string       { return r.file(name, ".sock") }
func (r plans) memory(name string) string       { return r.file(name, ".memory") }

// put writes a plan.
func (r plans) put(name string, p plan) error {
	p.Boot = r.boot
	data, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the plan of a cache: %w", err)
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of the plans of caches: %w", err)
	}
	if err := atomicfile.Write(r.file(name, planSuffix), partPattern, data, 0o600); err != nil {
		return fmt.Errorf("write the plan of a cache: %w", err)
	}
	return nil
}

// get returns the plan of a cache. It returns cache.ErrAbsent if there is none.
func (r plans) get(name string) (plan, error) {
	var p plan
	data, err := os.ReadFile(r.file(name, planSuffix))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && p.Boot != r.boot:
		return plan{}, fmt.Errorf("%s: %w", name, cache.ErrAbsent)
	case err != nil:
		return plan{}, fmt.Errorf("read the plan of a cache: %w", err)
	}
	return p, nil
}

// all returns the plans of all caches whose name has the prefix. One that cannot be read is there, with
// its damage: its cache may be assembled.
func (r plans) all(prefix string) (map[string]plan, error) {
	files, err := listing.Names(r.dir)
	if err != nil {
		return nil, fmt.Errorf("list the plans of caches: %w", err)
	}
	all := map[string]plan{}
	for _, file := range files {
		name, is := strings.CutSuffix(file, planSuffix)
		if !is || !strings.HasPrefix(name, prefix) {
			continue
		}
		p, err := r.get(name)
		if errors.Is(err, cache.ErrAbsent) {
			continue
		}
		if err != nil {
			p = plan{damage: err.Error(), Options: cache.Options{Mode: cache.Writeback}}
		}
		all[name] = p
	}
	return all, nil
}

// drop removes the files with these suffixes.
func (r plans) drop(name string, suffixes ...string) error {
	var errs []error
	for _, suffix := range suffixes {
		if err := os.Remove(r.file(name, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

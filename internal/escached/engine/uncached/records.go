package uncached

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/atomicfile"
	"github.com/escache/escache-csi/internal/escached/listing"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// Record is one image that is mapped without a cache.
type Record struct {
	escache.VolumeRef

	ImageID string `json:"imageID"`
	// Epoch is the newest attachment for which it was mapped.
	Epoch int64 `json:"epoch"`
}

// Records are files, one for each image. They survive this process, and not a reboot, as the maps do.
type Records struct{ dir string }

// In returns the records below a directory.
func In(runDir string) Records { return Records{filepath.Join(runDir, "uncached")} }

// half is the pattern of files that are being written.
const half = ".half-*"

func (r Records) path(ref escache.VolumeRef) string { return filepath.Join(r.dir, volume.NameOf(ref)) }

// Get returns the record of an image; false if there is none.
func (r Records) Get(ref escache.VolumeRef) (Record, bool, error) {
	record, err := read(r.path(ref))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, false, nil
	}
	return record, err == nil, err
}

func read(path string) (record Record, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &record)
	}
	if err != nil {
		return Record{}, fmt.Errorf("record of an image without a cache: %w", err)
	}
	return record, nil
}

// List returns all records. Those that cannot be read are in the error.
func (r Records) List() ([]Record, error) {
	files, err := listing.Names(r.dir)
	errs := []error{err}
	var all []Record
	for _, file := range files {
		if !strings.HasPrefix(file, volume.NamePrefix) {
			continue // half-written
		}
		record, err := read(filepath.Join(r.dir, file))
		switch {
		case err == nil:
			all = append(all, record)
		case !errors.Is(err, fs.ErrNotExist): // it may go at any moment
			errs = append(errs, err)
		}
	}
	return all, errors.Join(errs...)
}

// Put writes a record.
func (r Records) Put(record Record) error {
	text, err := json.Marshal(record)
	if err == nil {
		err = os.MkdirAll(r.dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(r.path(record.VolumeRef), half, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record that image %s/%s is mapped without a cache: %w", record.Pool, record.Image, err)
	}
	return nil
}

// Drop removes a record. One that is gone is success.
func (r Records) Drop(ref escache.VolumeRef) error {
	if err := os.Remove(r.path(ref)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record of an image without a cache: %w", err)
	}
	return nil
}

// Tidy removes what a killed process has left half-written. Nobody may call Put meanwhile.
func (r Records) Tidy() error { return atomicfile.Tidy(r.dir, half) }

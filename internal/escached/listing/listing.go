// Package listing lists directories whose entries prove something: maps, devices, processes, records.
package listing

import (
	"errors"
	"io/fs"
	"os"
)

// Names returns the names in a directory, sorted. One that does not exist has none; after any other error nobody
// knows what is there. filepath.Glob would answer "none", as when too many files are open.
func Names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// Package atomicfile writes files of which a reader sees the old content or the new one, and removes
// what a killed process has left of that.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write writes a file under another name in the same directory, and renames it. The content is on the
// disk when Write returns; after a power loss the file may still have its old content, unless the
// caller syncs the directory. pattern is that of os.CreateTemp for the other name; readers of the
// directory leave out what matches it.
func Write(path, pattern string, content []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), pattern)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone already if all went well
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	return err
}

// Tidy removes the files of a directory that match the pattern of a Write: a killed process has left
// them. Nobody may call Write for that directory meanwhile.
func Tidy(dir, pattern string) error {
	paths, err := filepath.Glob(filepath.Join(dir, pattern))
	errs := []error{err}
	for _, path := range paths {
		errs = append(errs, os.Remove(path))
	}
	return errors.Join(errs...)
}

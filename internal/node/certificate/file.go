package certificate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// replace writes a file that only its owner can read. After a crash there is the old file or the new
// one.
func replace(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory of the certificate: %w", err)
	}
	// One name for all: what a crash leaves is written over.
	next := path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write the certificate: %w", err)
	}
	file, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	_, err = file.Write(content)
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	folder, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("write the certificate: %w", err)
	}
	return errors.Join(folder.Sync(), folder.Close())
}

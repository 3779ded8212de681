// Package linksecret keeps the shared secrets of replication links on this host's root disk. They are
// in no tag and in no log: who has the disks of the caches or the logs has no secret.
package linksecret

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/atomicfile"
)

// Files are the secrets, a file of mode 0600 for each replica that has one. They survive a reboot.
type Files struct{ Dir string }

// In returns the secrets below a state directory.
func In(stateDir string) Files { return Files{Dir: filepath.Join(stateDir, "link-secrets")} }

func (f Files) path(name string) string { return filepath.Join(f.Dir, name) }

// Get returns the secret of the replica with this name, "" if there is none. A file that is damaged
// holds none.
func (f Files) Get(name string) (escache.Secret, error) {
	text, err := os.ReadFile(f.path(name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("secret of a replication link: %w", err)
	}
	secret := escache.Secret(text)
	if !secret.Valid() {
		return "", nil
	}
	return secret, nil
}

// Set stores the secret of a replica; "" removes it. The change is on the disk when Set returns.
func (f Files) Set(name string, secret escache.Secret) error {
	if err := f.set(name, secret); err != nil {
		return fmt.Errorf("secret of a replication link: %w", err)
	}
	return nil
}

func (f Files) set(name string, secret escache.Secret) error {
	if err := os.MkdirAll(f.Dir, 0o700); err != nil {
		return err
	}
	dir, err := os.Open(f.Dir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if secret == "" {
		if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return dir.Sync()
	}
	return errors.Join(atomicfile.Write(f.path(name), halfWritten, []byte(secret), 0o600), dir.Sync())
}

// halfWritten names the files that Set writes first.
const halfWritten = ".new-*"

// Tidy removes what a killed process has left half-written. Nobody may call Set meanwhile.
func (f Files) Tidy() error { return atomicfile.Tidy(f.Dir, halfWritten) }

// List returns the names of the replicas that have a secret.
func (f Files) List() ([]string, error) {
	entries, err := os.ReadDir(f.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("secrets of replication links: %w", err)
	}
	var names []string
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

// Package faileddisk handles the failure of the disk below a replica. DRBD goes on without that copy
// and asks nobody. So this host itself makes sure that the copy is never used again before a resync.
// It keeps a mark on another disk, and puts itself on record as outdated. If it cannot, it leaves its
// peer, which then has to ask.
package faileddisk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Marks are files, one for each replica whose disk has failed. They survive a reboot, after which
// the disk may work again.
type Marks struct {
	// Dir is on the root disk, not on the disks of the caches.
	Dir string
}

// In returns the marks below a state directory.
func In(stateDir string) Marks { return Marks{Dir: filepath.Join(stateDir, "failed-disks")} }

// State says what is known of a replica's disk.
type State string

const (
	// Sound means that there is no mark.
	Sound State = ""
	// Failed means that the disk has failed, and that this copy may still count as current.
	Failed State = "failed"
	// Recorded means that this copy is on record as outdated.
	Recorded State = "recorded"
)

func (m Marks) path(name string) string { return filepath.Join(m.Dir, name) }

// Get returns the state of the replica with this name. A mark that cannot be read counts as Failed.
func (m Marks) Get(name string) State {
	text, err := os.ReadFile(m.path(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Sound
	case string(text) == string(Recorded):
		return Recorded
	}
	return Failed
}

// Set marks a replica as Failed or Recorded. The mark is on the disk when Set returns.
func (m Marks) Set(name string, state State) error {
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return fmt.Errorf("mark of a failed disk: %w", err)
	}
	dir, err := os.Open(m.Dir)
	if err != nil {
		return fmt.Errorf("mark of a failed disk: %w", err)
	}
	defer func() { _ = dir.Close() }()
	// A half-written mark reads as Failed, so it needs no second name.
	f, err := os.OpenFile(m.path(name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("mark of a failed disk: %w", err)
	}
	_, err = f.WriteString(string(state))
	if err := errors.Join(err, f.Sync(), f.Close(), dir.Sync()); err != nil {
		return fmt.Errorf("mark of a failed disk: %w", err)
	}
	return nil
}

// Drop removes the mark of a replica, if there is one.
func (m Marks) Drop(name string) error {
	if err := os.Remove(m.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("mark of a failed disk: %w", err)
	}
	return nil
}

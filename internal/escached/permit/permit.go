// Package permit records that a host may go on without its peer before the peer is lost.
//
// DRBD freezes a Primary's I/O when the peer is lost, until the arbiter has put the peer's copy on
// record as outdated. That keeps two hosts from going on from the same data. A peer without a disk
// takes no writes, so its copy can be put on record while the link is still up. The host that has the
// volume then has a permit: DRBD goes on without a freeze, as it does after the arbiter has granted
// going on alone.
//
// A freeze would not only take time. It must not happen at all: DRBD 8.4 never ends a flush without data that was
// under way when I/O was frozen, since such flushes are not on the list of requests that it goes
// through when I/O goes on. While a current peer is linked, that flush follows writes that have
// reached the peer, so none is under way when the loss is noticed. Without the peer's disk no write
// waits for the peer, and the device can hang until the host reboots.
//
// A permit holds only while the peer is on record as outdated. So the status of the volume shows
// it (mayGoOnAlone), and nobody takes the peer off that list while it does. The order makes that
// safe:
//
//   - The record here is made first (Asked). Then the arbiter is asked. Its answer changes the volume's
//     record in any case, so a removal from the list that read the record before fails. One that reads
//     it afterwards also reads the status afterwards, and finds the permit.
//   - Then DRBD is told not to freeze (Granted).
//   - A status reads the permit first, and DRBD's state after it.
//   - When the peer's copy is current again, DRBD is first told to freeze again. The record here
//     goes only after that. Until then the peer's copy is outdated for everybody, although the resync has
//     ended: it is neither promoted nor attached.
package permit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// State says how far a host has got with a permit.
type State string

const (
	// None means that DRBD freezes I/O when the peer is lost.
	None State = ""
	// Asked means that DRBD is to freeze I/O, and that it is not known whether it does: a permit is
	// being taken or dropped.
	Asked State = "asked"
	// Granted means that the peer is on record as outdated and that DRBD is not to freeze I/O.
	Granted State = "granted"
)

// Records are files, one for each volume with a permit. They survive this process but need not
// survive a reboot, which ends what DRBD was told.
type Records struct{ Dir string }

// In returns the records below a directory.
func In(runDir string) Records { return Records{Dir: filepath.Join(runDir, "permits")} }

// Get returns the state of the volume with this name. What cannot be read counts as Asked.
func (r Records) Get(name string) State {
	text, err := os.ReadFile(filepath.Join(r.Dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return None
	case string(text) == string(Granted):
		return Granted
	}
	return Asked
}

// Set sets the state to Asked or Granted.
func (r Records) Set(name string, state State) error {
	err := os.MkdirAll(r.Dir, 0o700)
	if err == nil {
		// A half-written record reads as Asked, so it needs no second name.
		err = os.WriteFile(filepath.Join(r.Dir, name), []byte(state), 0o600)
	}
	if err != nil {
		return fmt.Errorf("record of a permit: %w", err)
	}
	return nil
}

// Drop sets the state to None.
func (r Records) Drop(name string) error {
	if err := os.Remove(filepath.Join(r.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("record of a permit: %w", err)
	}
	return nil
}

// Package filesystem finds out what is on a device, decides whether a filesystem may be made there, makes it, grows it and
// checks it. It never formats over anything.
//
// Two independent looks decide that a device is blank: libblkid finds no signature, and the first and last megabytes and samples
// between them read as zeros. A filesystem of our own that mkfs left half-written is known by a Record that was made before.
package filesystem

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Filesystem types that can be made and mounted.
const (
	Ext4 = "ext4"
	XFS  = "xfs"
)

// Errors of this package; each comes wrapped in a sentence that says what was found and what to do.
var (
	// ErrForeign: the device holds something that is not a filesystem of the wanted type.
	ErrForeign = errors.New("refusing to format")
	// ErrVanished: a filesystem was made here once, and the device reads blank now.
	ErrVanished = errors.New("the volume's filesystem has vanished")
	// ErrInUse: somebody has the device open exclusively: a mount, or a mkfs that still runs.
	ErrInUse = errors.New("the device is in use")
	// ErrOptions: the mkfs options cannot be used.
	ErrOptions = errors.New("mkfsOptions")
	// ErrUnknownType: not a filesystem type of this driver.
	ErrUnknownType = errors.New("unknown filesystem type")
)

// Known returns ErrUnknownType unless a filesystem of this type can be made and mounted.
func Known(fsType string) error {
	if fsType == Ext4 || fsType == XFS {
		return nil
	}
	return fmt.Errorf("%w %q: this driver makes %s and %s", ErrUnknownType, fsType, Ext4, XFS)
}

// ParseOptions splits more options for mkfs at blanks. It refuses those that would break what the driver relies on.
func ParseOptions(fsType, options string) ([]string, error) {
	refused := map[string][]string{
		Ext4: {"-n", "-S", "-U", "-F", "-q", "-V"},
		XFS:  {"-N", "-f", "-p", "-q", "-V"},
	}
	words := strings.Fields(options)
	for _, word := range words {
		switch {
		case slices.Contains(refused[fsType], word), strings.Contains(word, "uuid="):
			return nil, fmt.Errorf("%w: %s is the driver's own to set; remove it from the StorageClass", ErrOptions, word)
		case strings.HasPrefix(word, "/"), strings.Contains(word, "=/"):
			return nil, fmt.Errorf("%w: %s names another device or file; remove it from the StorageClass", ErrOptions, word)
		}
	}
	return words, nil
}

// MountOptions completes the options of a volume's mount: ext4 turns read-only at an error, xfs mounts beside its own clone.
func MountOptions(fsType string, options []string, readOnly bool) []string {
	all := slices.Clone(options)
	has := func(name string) bool {
		return slices.ContainsFunc(all, func(o string) bool { return o == name || strings.HasPrefix(o, name+"=") })
	}
	switch {
	case fsType == Ext4 && !has("errors"):
		all = append(all, "errors=remount-ro")
	case fsType == XFS && !has("nouuid"):
		all = append(all, "nouuid")
	}
	if readOnly && !has("ro") {
		all = append(all, "ro")
	}
	return all
}

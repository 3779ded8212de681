// Package filesystem finds out what is on a device, decides whether a filesystem may be made there,
// and makes, grows and checks filesystems. It never overwrites data that it has not written itself.
//
// A device counts as blank only if two independent checks agree: libblkid finds no signature, and
// the first and last megabytes and samples between them read as zeros. The package recognises a
// filesystem that its own mkfs left half-written by a Record that was written before mkfs.
package filesystem

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/internal/fstype"
)

// Filesystem types that can be made and mounted.
const (
	Ext4 = fstype.Ext4
	XFS  = fstype.XFS
)

// Errors of this package. Each is wrapped in a sentence that says what was found and what to do.
var (
	// ErrForeign: the device holds something that is not a filesystem of the wanted type.
	ErrForeign = errors.New("refusing to format")
	// ErrVanished: a filesystem was made here, and now the device is blank.
	ErrVanished = errors.New("the volume's filesystem has vanished")
	// ErrInUse: a mount, or a mkfs that still runs, has the device open exclusively.
	ErrInUse = errors.New("the device is in use")
	// ErrOptions: the mkfs options cannot be used.
	ErrOptions = errors.New("mkfsOptions")
)

// ParseOptions splits additional mkfs options at blanks. It refuses those that conflict with the
// driver's own, and those that name another device or file.
func ParseOptions(fsType, options string) ([]string, error) {
	refused := map[string][]string{
		Ext4: {"-n", "-S", "-U", "-F", "-q", "-V"},
		XFS:  {"-N", "-f", "-p", "-q", "-V"},
	}
	words := strings.Fields(options)
	for _, word := range words {
		switch {
		case slices.Contains(refused[fsType], word), strings.Contains(word, "uuid="):
			return nil, fmt.Errorf("%w: only the driver may set %s; remove it from the StorageClass", ErrOptions, word)
		case strings.HasPrefix(word, "/"), strings.Contains(word, "=/"):
			return nil, fmt.Errorf("%w: %s names another device or file; remove it from the StorageClass", ErrOptions, word)
		}
	}
	return words, nil
}

package fstype

import (
	"slices"
	"strings"
)

// MountOptions completes the mount options of a volume: with errors=remount-ro ext4 turns read-only
// at an error, and with nouuid xfs mounts beside a clone of itself.
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

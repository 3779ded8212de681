package authority

import (
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Claims returns who wants the attached volume to write through. Those of an earlier attachment have ended with it.
func Claims(v *v1alpha1.CacheVolume) []string {
	var owners []string
	for _, c := range v.Status.WriteThrough {
		if v.Status.AttachedNode != "" && c.Epoch == v.Status.Epoch {
			owners = append(owners, c.Owner)
		}
	}
	return owners
}

// Drained decides whether an attached volume's truth is in Ceph and stays there: somebody has it on record that it writes
// through, its holder says in one answer that it does, and that nothing is dirty.
func Drained(v *v1alpha1.CacheVolume, holder Report) bool {
	s := holder.Status
	connected := []escache.State{escache.StateConnected, escache.StateFlushing, escache.StateDraining}
	return len(Claims(v)) > 0 && holder.Err == nil && slices.Contains(connected, s.State) && s.Role == escache.RolePrimary &&
		s.Epoch == v.Status.Epoch && s.Mode == escache.ModeWritethrough && s.DirtyBytes != nil && *s.DirtyBytes == 0 && s.Error == nil
}

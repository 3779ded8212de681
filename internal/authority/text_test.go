package authority

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// TestARefusalHasTheSameTextWhateverIsDirty: Kubernetes makes an Event of each different text, and a volume in
// use has another number of dirty bytes at each try.
func TestARefusalHasTheSameTextWhateverIsDirty(t *testing.T) {
	with := func(dirty int64) answer {
		a := holding(escache.StateConnected)
		a.Status.DirtyBytes = &dirty
		return a
	}
	for name, refusal := range map[string]func(dirty int64) error{
		"the holder has lost its copy": func(dirty int64) error {
			_, err := Attach(volume(func(s *v1alpha1.CacheVolumeStatus) {
				inCache(s)
				s.AttachedNode, s.Outdated, s.DirtyBytes = "n1", []string{"n1"}, dirty
			}), group, "n1")
			return err
		},
		"a copy is in use against the record": func(dirty int64) error {
			v := leaver(func(*v1alpha1.CacheVolumeStatus) {})
			own := answer{Status: escache.VolumeStatus{State: escache.StateAbsent, Role: escache.RoleUnknown, HostID: "nine"}}
			_, err := Confirmed(v, "n9", Attachment{Uncached: true}, heardOf(v, map[string]answer{"n9": own, "n1": with(dirty)}))
			return err
		},
		"it is not unstaged": func(dirty int64) error {
			v := volume(func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode = "n1" })
			_, err := Detach(v, "n1", heardOf(v, map[string]answer{"n1": with(dirty)})["n1"], Death{})
			return err
		},
	} {
		first, second := refusal(5<<20), refusal(7<<20)
		if first == nil || second == nil || first.Error() != second.Error() {
			t.Errorf("%s: first %v, then %v", name, first, second)
		}
	}
}

package cacheflush

import (
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// left makes a volume that no node has, and that is dirty on n1 and n2.
func (w *world) left(name string, dirty int64) *v1alpha1.CacheVolume {
	w.t.Helper()
	v := w.pair(name, dirty)
	for _, node := range []string{"n1", "n2"} {
		w.fleet.Hosts[node].Release(cachevolume.Ref(v))
		w.fleet.Hosts[node].Write(cachevolume.Ref(v), dirty)
	}
	v.Status.AttachedNode, v.Status.ClientAddress = "", ""
	must(w.t, w.api.Status().Update(w.t.Context(), v))
	return w.volume(name)
}

// Whoever switches the host off afterwards must not take the second copy of such a volume away.
func TestAnEvacuationWritesBackWhatNoNodeHas(t *testing.T) {
	for _, secondCopies := range []bool{false, true} {
		w := newWorld(t)
		w.left("left", 3*mib)
		w.left("old", mib)
		w.outdated("old", "n2") // what n2 has of it is not needed
		elsewhere := w.left("elsewhere", mib)
		elsewhere.Spec.Replicas = []string{"n1", "n3"}
		must(t, w.api.Update(t.Context(), elsewhere))
		w.evacuate(secondCopies)
		f := w.until(v1alpha1.FlushDrained)
		if s := w.volume("left").Status; s.Authority != v1alpha1.AuthorityCeph || s.AttachedNode != "" {
			t.Errorf("second copies %v: the evacuation is done (%s), and of the volume the record says %+v", secondCopies, complete(f), s)
		}
		for _, other := range []string{"old", "elsewhere"} {
			if w.volume(other).Status.Authority != v1alpha1.AuthorityCache {
				t.Errorf("%s was written back: %+v", other, f.Status.Volumes)
			}
		}
	}
}

func TestAFlushOfAGroupIsForVolumesThatNoNodeHasToo(t *testing.T) {
	w := newWorld(t)
	w.left("left", mib)
	w.attach("attached", "n3", mib)
	w.flush(v1alpha1.CacheFlushSpec{NodeGroup: "g1"})
	f := w.until(v1alpha1.FlushComplete)
	if w.volume("left").Status.Authority != v1alpha1.AuthorityCeph || *w.on("n3", "attached").DirtyBytes != 0 {
		t.Errorf("%+v", f.Status.Volumes)
	}
}

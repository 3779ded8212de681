package cachevolume

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// An escached that does not know engines refuses a request that has the field.
func TestOnlyAnEngineThatNotEveryHostHasIsNamed(t *testing.T) {
	for recorded, want := range map[v1alpha1.CacheEngine]escache.Engine{"": "", "writecache": "", "log": escache.EngineLog} {
		v := &v1alpha1.CacheVolume{}
		v.Spec.CacheEngine = recorded
		if got := ConnectRequest(v).Engine; got != want {
			t.Errorf("%q on record: asked for %q, want %q", recorded, got, want)
		}
	}
}

func TestTheOrderOfWriteBackIsAskedForIfItIsOnRecord(t *testing.T) {
	for recorded, want := range map[v1alpha1.WriteBackOrder]escache.WriteBackOrder{"": "", v1alpha1.WriteBackOrderStrict: escache.OrderStrict} {
		v := &v1alpha1.CacheVolume{}
		v.Spec.CacheOptions.WriteBackOrder = recorded
		if got := ConnectRequest(v).Options.WriteBackOrder; got != want {
			t.Errorf("%q on record: asked for %q, want %q", recorded, got, want)
		}
	}
}

// A volume that was created with a longer age than hosts take must attach all the same.
func TestTheAgeIsWhatHostsTake(t *testing.T) {
	for recorded, want := range map[int32]int{0: 0, 300: 300, 86400: 86400, 7 * 86400: 86400} {
		v := &v1alpha1.CacheVolume{}
		v.Spec.CacheOptions.MaxDirtyAgeSeconds = recorded
		if got := ConnectRequest(v).Options.MaxDirtyAgeSeconds; got != want {
			t.Errorf("%d s on record: asked for %d, want %d", recorded, got, want)
		}
	}
}

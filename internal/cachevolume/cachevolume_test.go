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

func TestOnlyAnAttachmentWithoutACacheAsksForNone(t *testing.T) {
	v := &v1alpha1.CacheVolume{}
	v.Spec.CacheEngine, v.Status.ImageID, v.Status.AttachedNode, v.Status.Epoch = "log", "10ab", "n9", 3
	v.Status.Fenced = []v1alpha1.FencedClient{{Address: "10.0.0.9:0/1"}, {Node: "n1"}} // no client of n1 was known
	v.Status.Uncached = &v1alpha1.UncachedAttachment{Epoch: 3}
	r := ConnectRequest(v)
	if !r.Uncached || r.Engine != "" || r.Options != (escache.ConnectOptions{}) || r.ImageID != "10ab" || r.Epoch != 3 || len(r.Fenced) != 1 {
		t.Errorf("%+v", r)
	}
	v.Status.Epoch = 4 // another attachment
	if r = ConnectRequest(v); r.Uncached || r.Engine != escache.EngineLog || r.Options.Mode != escache.ModeWritethrough {
		t.Errorf("%+v", r)
	}
}

package resync

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestAResyncIsToldAsFarAsItIsKnown(t *testing.T) {
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for want, is := range map[string]v1alpha1.VolumeResync{
		"12%, 880Mi left at 40Mi/s, 22s remaining":     {Percent: 12, LeftBytes: 880 << 20, BytesPerSecond: 40 << 20, RemainingSeconds: 22},
		"99%, 1Gi left at 1Ki/s, 291h16m16s remaining": {Percent: 99, LeftBytes: 1 << 30, BytesPerSecond: 1 << 10, RemainingSeconds: 1048576},
		"12%, 880Mi left at 0/s":                       {Percent: 12, LeftBytes: 880 << 20}, // it stands still
		"50%":                                          {Percent: 50},
	} {
		is.Node, is.Seen = "n2", metav1.NewTime(now.Add(-59*time.Second))
		v := v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
		v.Status.AttachedNode, v.Status.Resync = "n1", &is
		r, running := Of(&v)
		if !running || r.String() != want || r.Volume != "v" || r.Onto != "n2" || r.Old(now) || !r.Old(now.Add(time.Second)) {
			t.Errorf("want %s, got %s: %+v", want, r, r)
		}
		if all := All([]v1alpha1.CacheVolume{{}, v}); len(all) != 1 || all[0] != r {
			t.Errorf("%+v", all)
		}
		v.Status.AttachedNode = ""
		if _, running := Of(&v); running {
			t.Error("it is told of a volume that no host has")
		}
	}
}

package reservation

import (
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
)

// TestALateReportDoesNotFreeThePlaceOfAMove: a watch reports an older state of the record after the move was written.
func TestALateReportDoesNotFreeThePlaceOfAMove(t *testing.T) {
	b := newBook(t, 10)
	other := placement.Group{Name: "h"}
	for _, n := range []string{"m1", "m2", "m3"} {
		other.Members = append(other.Members, placement.Member{Name: n, Ready: true, CapacityBytes: 1000})
	}
	if err := b.SetGroup(other, nil); err != nil {
		t.Fatal(err)
	}
	held := func(want bool, when string) {
		t.Helper()
		if b.Has("h") != want {
			t.Errorf("%s: its place in h is held: %v", when, !want)
		}
	}
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}, CacheBytes: 60, Port: 7005}}
	v.Name, v.UID, v.ResourceVersion = "v", "uid", "9"
	b.Observe(v)
	r, err := b.Elsewhere(v, "h")
	if err != nil {
		t.Fatal(err)
	}
	going := v.DeepCopy()
	going.Status.Move = &v1alpha1.VolumeMove{Group: "h", Replicas: []string{r.Primary, r.Partner}, Port: r.Port, Minor: r.Minor}
	going.ResourceVersion = "10"
	b.Observe(going)
	b.Saw(v)
	held(true, "after a late report")
	off := v.DeepCopy()
	off.ResourceVersion = "11"
	b.Observe(off)
	b.Saw(going)
	held(false, "after a late report of a move that is off")
	b.Saw(off)
	going.ResourceVersion = "12"
	b.Saw(going)
	held(true, "after a report of a move that another process has recorded")
	if _, err := b.Pair(going, "n2", "n1"); err != nil {
		t.Fatal(err)
	}
	b.Saw(off)
	held(true, "after a late report while its hosts change")
	off.ResourceVersion = "13"
	b.Saw(off)
	held(false, "after a report that the move is off")
}

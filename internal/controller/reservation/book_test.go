package reservation

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/placement"
)

func newBook(t *testing.T, slots int32) *Book {
	t.Helper()
	b := NewBook(Slots{Ports: Range{7000, 7000 + slots - 1}, Minors: Range{10, 10000}})
	b.set(t, nil)
	return b
}

func (b *Book) set(t *testing.T, stale []v1alpha1.StaleReplica) {
	t.Helper()
	g := placement.Group{Name: "g"}
	for _, n := range []string{"n1", "n2", "n3"} {
		g.Members = append(g.Members, placement.Member{Name: n, Ready: n != "n3", CapacityBytes: 1000})
	}
	if err := b.SetGroup(g, stale); err != nil {
		t.Fatal(err)
	}
}

func TestEveryVolumeHasItsOwnNumbers(t *testing.T) {
	b := newBook(t, 3)
	seen := map[int32]bool{}
	for i := range 3 {
		r, err := b.Reserve(fmt.Sprint(i), 9, "", nil)
		if err != nil || seen[r.Port] || r.Minor-10 != r.Port-7000 {
			t.Errorf("%+v, %v", r, err)
		}
		seen[r.Port] = true
		if again, err := b.Reserve(fmt.Sprint(i), 9, "", nil); err != nil || again != r {
			t.Errorf("asked again: %+v, %v", again, err)
		}
	}
	if _, err := b.Reserve("3", 9, "", nil); !errors.Is(err, ErrNoSlot) {
		t.Errorf("a fourth: %v", err)
	}
	b.Forget("1")
	if r, err := b.Reserve("3", 9, "", nil); err != nil || r.Port != 7001 {
		t.Errorf("after one was given back: %+v, %v", r, err)
	}
	if u := b.Usage()[0]; u.Volumes != 3 || u.AllocatedBytes != 54 {
		t.Errorf("usage %+v", u)
	}
}

// A group with room and without a free port takes nothing, and another group that may take the volume gets it.
func TestAGroupWithoutAPortIsFull(t *testing.T) {
	b := newBook(t, 1)
	if _, err := b.Reserve("1", 9, "", []string{"g"}); err != nil {
		t.Fatal(err)
	}
	if u := b.Usage()[0]; u.LargestBytes != 0 || u.RoomBytes != 0 || u.CapacityBytes != 3000 {
		t.Errorf("usage %+v", u)
	}
	if _, err := b.Reserve("2", 9, "", []string{"g"}); !errors.Is(err, ErrNoSlot) || !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("got %v", err)
	}
	members := []placement.Member{{Name: "m1", Ready: true, CapacityBytes: 50}, {Name: "m2", Ready: true, CapacityBytes: 50}} // a larger share
	if err := b.SetGroup(placement.Group{Name: "small", Members: members}, nil); err != nil {
		t.Fatal(err)
	}
	for volume, groups := range map[string][]string{"2": nil, "3": {"g", "small"}} {
		if r, err := b.Reserve(volume, 9, "", groups); err != nil || r.Group != "small" || r.Port != 7000 {
			t.Errorf("%s: %+v, %v", volume, r, err)
		}
		b.Forget(volume)
	}
}

func TestStaleReplicasKeepTheirNumbers(t *testing.T) {
	b := newBook(t, 10)
	stale := []v1alpha1.StaleReplica{{Node: "n1", Port: 7000}}
	b.HoldStale("g", stale)
	b.set(t, nil) // the group's status was read before
	for range 2 { // also when the group's status, which has it too, is seen
		if r, err := b.Reserve("v", 9, "", nil); err != nil || r.Port != 7001 {
			t.Errorf("%+v, %v", r, err)
		}
		b.Forget("v")
		b.set(t, stale)
	}
	free := func(when string) {
		t.Helper()
		if r, err := b.Reserve("v", 9, "", nil); err != nil || r.Port != 7000 {
			t.Errorf("%s: %+v, %v", when, r, err)
		}
		b.Forget("v")
	}
	b.set(t, nil)
	free("it is off the list")
	b.HoldStale("g", stale)
	b.ReleaseStale("g", stale[0])
	free("it was removed before it was seen on the list")
	b.set(t, stale)
	b.set(t, nil)
	free("a list that was read before it was removed")
}

func TestRecordsAreTakenIn(t *testing.T) {
	b := newBook(t, 10)
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}, CacheBytes: 99, Port: 7000, Minor: 10}}
	v.Name = "v"
	for range 3 {
		b.Observe(v)
	}
	if u := b.Usage()[0]; u.Volumes != 1 || u.AllocatedBytes != 198 {
		t.Errorf("usage %+v", u)
	}
	if r, err := b.Reserve("w", 9, "", nil); err != nil || r.Port != 7001 {
		t.Errorf("%+v, %v", r, err)
	}
	b.Forget("v")
	b.Forget("w")
	if u := b.Usage()[0]; u.Volumes != 0 || u.AllocatedBytes != 0 {
		t.Errorf("usage %+v", u)
	}
}

func TestLateNewsDoNotTouchWhatIsKnownBetter(t *testing.T) {
	b := newBook(t, 10)
	record := func(uid types.UID, port int32, deleted bool) *v1alpha1.CacheVolume {
		v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}, CacheBytes: 9, Port: port}}
		v.Name, v.UID = "v", uid
		if deleted {
			v.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
		return v
	}
	port := func(want int32) {
		t.Helper()
		b.mu.Lock()
		defer b.mu.Unlock()
		if got := b.volumes["v"].Port; got != want {
			t.Errorf("port %d, want %d", got, want)
		}
	}
	b.Saw(record("old", 7005, true)) // deleted and forgotten before
	port(0)
	r, err := b.Reserve("v", 9, "", nil) // in creation
	if err != nil {
		t.Fatal(err)
	}
	b.Saw(record("old", 7005, false))
	b.SawGone(record("old", 7005, true))
	port(r.Port)
	b.Observe(record("new", r.Port, false))
	b.Saw(record("old", 7005, false))
	b.SawGone(record("old", 7005, true))
	port(r.Port)
	b.SawGone(record("new", r.Port, true))
	port(0)
	b.Saw(record("by hand", 7003, false))
	port(7003)
}

func TestMoveIsAroundTheNode(t *testing.T) {
	b := newBook(t, 10)
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n2", "n3"}, CacheBytes: 9, Port: 7000}}
	v.Name = "v"
	b.Observe(v)
	p, err := b.Around(v, "n1", v.Spec.CacheBytes)
	if err != nil || p.Primary != "n1" || p.Partner != "n2" {
		t.Errorf("%+v, %v: n3 is not ready", p, err)
	}
	if _, err := b.Around(v, "n3", v.Spec.CacheBytes); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("a node that is not ready was taken: %v", err)
	}
	if !b.Ready("g", "n1") || b.Ready("g", "n3") || b.Ready("g", "n9") || b.Ready("h", "n1") {
		t.Error("wrong about who is ready")
	}
}

// A cordoned group takes no new volumes, and those that it has go on: they move between its hosts, and
// lost copies are replaced.
func TestVolumesOfACordonedGroupMoveWithinIt(t *testing.T) {
	b := newBook(t, 10)
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n2", "n3"}, CacheBytes: 600, Port: 7000}}
	v.Name = "v"
	b.Observe(v)
	cordoned := placement.Group{Name: "g", Cordoned: true}
	for _, n := range []string{"n1", "n2", "n3"} {
		cordoned.Members = append(cordoned.Members, placement.Member{Name: n, Ready: n != "n3", CapacityBytes: 1000})
	}
	if err := b.SetGroup(cordoned, nil); err != nil {
		t.Fatal(err)
	}
	p, err := b.Around(v, "n1", v.Spec.CacheBytes)
	if err != nil || p.Primary != "n1" || p.Partner != "n2" {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := b.Around(v, "n3", v.Spec.CacheBytes); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("around a host that is not ready: %v", err)
	}
	if _, err := b.Reserve("new", 1, "", nil); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("a new volume: %v", err)
	}
	full := *v
	full.Spec.CacheBytes = 1001
	if _, err := b.Around(&full, "n1", full.Spec.CacheBytes); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("without room: %v", err)
	}
}

// TestBothPlacesAreHeldWhileAVolumeMoves follows a volume through its move.
func TestBothPlacesAreHeldWhileAVolumeMoves(t *testing.T) {
	b := newBook(t, 10)
	other := placement.Group{Name: "h"}
	for _, n := range []string{"m1", "m2", "m3"} {
		other.Members = append(other.Members, placement.Member{Name: n, Ready: true, CapacityBytes: 1000})
	}
	if err := b.SetGroup(other, nil); err != nil {
		t.Fatal(err)
	}
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}, CacheBytes: 600, Port: 7005}}
	v.Name, v.UID = "v", "uid"
	b.Observe(v)
	held := func(inG, inH int) {
		t.Helper()
		if g, h := b.Usage()[0], b.Usage()[1]; g.Volumes != inG || h.Volumes != inH || g.AllocatedBytes != int64(1200*inG) ||
			h.AllocatedBytes != int64(1200*inH) || b.Has("g") != (inG > 0) || b.Has("h") != (inH > 0) {
			t.Errorf("group g %+v, group h %+v", g, h)
		}
	}
	r, err := b.Elsewhere(v, "h")
	if err != nil || r.Group != "h" || r.Port != 7000 {
		t.Fatalf("%+v, %v", r, err)
	}
	b.Saw(v) // a late report of the record knows nothing of the move
	held(1, 1)
	if _, err := b.Reserve("another", 600, "", []string{"h"}); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("its place in h was given away: %v", err)
	}
	b.Stay("v")
	held(1, 0)
	if r, err = b.Elsewhere(v, "h"); err != nil {
		t.Fatal(err)
	}
	v.Status.Move = &v1alpha1.VolumeMove{Group: "h", Replicas: []string{r.Primary, r.Partner}, Port: r.Port, Minor: r.Minor}
	b.Observe(v)
	held(1, 1)
	off := v.DeepCopy()
	off.Status.Move = nil
	b.Observe(off)
	held(1, 0)
	b.Observe(v) // as another leader does that reads the record
	held(1, 1)
	v.Spec.Group, v.Spec.Replicas, v.Spec.Port, v.Spec.Minor = "h", v.Status.Move.Replicas, r.Port, r.Minor
	b.Observe(v)
	held(0, 1)
	v.Status.Move = nil
	b.Observe(v)
	held(0, 1)
	if next, err := b.Reserve("another", 6, "", []string{"h"}); err != nil || next.Port == r.Port {
		t.Errorf("port %d is given twice: %v", next.Port, err)
	}
	b.Forget("another")
	b.SawGone(v)
	held(0, 0)
	if next, err := b.Reserve("another", 6, "", []string{"h"}); err != nil || next.Port != r.Port {
		t.Errorf("port %d is not free again: %v", r.Port, err)
	}
}

func TestAVolumeMovesOnlyWhereThereIsRoom(t *testing.T) {
	b := newBook(t, 1)
	v := &v1alpha1.CacheVolume{Spec: v1alpha1.CacheVolumeSpec{Group: "other", Replicas: []string{"a", "b"}, CacheBytes: 600, Port: 7000}}
	v.Name = "v"
	b.Observe(v)
	big := v.DeepCopy()
	big.Spec.CacheBytes = 1001
	if _, err := b.Elsewhere(big, "g"); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("without room: %v", err)
	}
	if _, err := b.Elsewhere(v, "gone"); !errors.Is(err, placement.ErrNoFit) {
		t.Errorf("without such a group: %v", err)
	}
	if _, err := b.Reserve("first", 6, "", []string{"g"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Elsewhere(v, "g"); !errors.Is(err, ErrNoSlot) || b.Usage()[0].Volumes != 1 {
		t.Errorf("without a port: %v, %+v", err, b.Usage())
	}
}

func TestSlotRanges(t *testing.T) {
	good := Slots{Ports: Range{7800, 8799}, Minors: Range{100, 1099}}
	if err := good.Validate(); err != nil || good.count() != 1000 {
		t.Errorf("%v, %d", err, good.count())
	}
	for _, s := range []Slots{
		{Range{80, 90}, good.Minors}, {Range{8000, 7000}, good.Minors}, {Range{65000, 70000}, good.Minors},
		{good.Ports, Range{-1, 5}}, {good.Ports, Range{0, 1 << 20}}, {},
	} {
		if s.Validate() == nil {
			t.Errorf("%+v is let in", s)
		}
	}
}

package repair_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/repair"
)

// record changes a volume's record, as csi-node does.
func (w *world) record(name string, change func(*v1alpha1.CacheVolume)) {
	w.t.Helper()
	v := w.volume(name)
	change(v)
	v.Status.Summarize()
	check(w.t, w.api.Status().Update(w.t.Context(), v))
}

// alone has the holder go on alone: n2's copy is outdated, and the link is as given.
func (w *world) alone(link escache.LinkState, disk escache.DiskState) {
	w.t.Helper()
	w.fleet.Hosts["n1"].Change(ref("v"), func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{Name: "n2", ConnectionState: link, DiskState: disk}}
	})
	w.record("v", func(v *v1alpha1.CacheVolume) {
		v.Status.SetHostID("n2", w.fleet.Hosts["n2"].Host.Node().HostID)
		v.Status.Outdated = []string{"n2"}
		meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonPeerLost, Message: "alone",
		})
	})
}

// steps lets another process take over before every poll.
func (w *world) steps(n int) {
	w.t.Helper()
	for range n {
		w.restart()
		w.poll()
	}
}

func (w *world) whyNot(name string) string {
	c := meta.FindStatusCondition(w.volume(name).Status.Conditions, v1alpha1.ConditionRedundant)
	if c == nil {
		return ""
	}
	return c.Reason
}

func (w *world) told(reason string) bool {
	for {
		select {
		case e := <-w.events.Events:
			if strings.Contains(e, reason) {
				return true
			}
		default:
			return false
		}
	}
}

func TestADeadDiskIsReplacedAtOnceThoughItsHostAnswers(t *testing.T) {
	w := newWorld(t, "v")
	w.alone(escache.LinkConnected, escache.DiskDiskless)
	w.steps(1)
	w.at("v", "Beginning", "the disk of the copy on n2 has failed")
	w.steps(2)
	w.steps(1)
	v := w.volume("v")
	if !slices.Equal(v.Spec.Replicas, []string{"n1", "n3"}) || !v.Status.IsOutdated("n3") || v.Status.Authority != v1alpha1.AuthorityCeph {
		t.Fatalf("replicas %v, status %+v", v.Spec.Replicas, v.Status)
	}
	w.steps(2)
	if !w.fleet.Hosts["n2"].Has(ref("v")) {
		t.Error("the old replica was removed while the holder could still be linked to it")
	}
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.steps(4)
	v = w.volume("v")
	if len(v.Status.Outdated) > 0 || v.Status.Repair != nil || len(v.Status.WriteThrough) > 0 || w.fleet.Hosts["n2"].Has(ref("v")) {
		t.Errorf("replicas on %v, status %+v", w.fleet.On(ref("v")), v.Status)
	}
}

func TestAnEmptyHostGetsItsCopyAgain(t *testing.T) {
	for what, empty := range map[string]struct {
		do  func(w *world)
		why string
	}{
		"reinstalled":     {func(w *world) { w.fleet.Hosts["n2"].Replace() }, v1alpha1.ReasonHostReinstalled},
		"its LV is wiped": {func(w *world) { w.fleet.Hosts["n2"].Forget() }, v1alpha1.ReasonReplicaMissing},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, "v")
			before := w.volume("v").Spec.LinkGeneration
			w.alone(escache.LinkWFConnection, escache.DiskOutdated)
			empty.do(w)
			w.steps(1)
			w.at("v", "Beginning", "n2")
			if why := w.whyNot("v"); why != empty.why {
				t.Errorf("the record says %s", why)
			}
			w.steps(3)
			v := w.volume("v")
			if !slices.Equal(v.Spec.Replicas, []string{"n1", "n2"}) || !v.Status.IsOutdated("n2") || v.Spec.LinkGeneration != before+1 ||
				!w.fleet.Hosts["n2"].Has(ref("v")) || v.Status.HostID("n2") != w.fleet.Hosts["n2"].Host.Node().HostID {
				t.Fatalf("spec %+v, status %+v", v.Spec, v.Status)
			}
			group := &v1alpha1.NodeGroup{}
			check(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g"}, group))
			if len(group.Status.StaleReplicas) > 0 {
				t.Errorf("stale: %+v", group.Status.StaleReplicas)
			}
			w.fleet.Hosts["n1"].Sync(ref("v"), 100)
			w.steps(3)
			if v = w.volume("v"); len(v.Status.Outdated) > 0 || v.Status.Repair != nil || v.Spec.LinkGeneration != before+1 {
				t.Errorf("spec %+v, status %+v", v.Spec, v.Status)
			}
		})
	}
}

// A replica that a host denies, while the record counts it, may hold the truth.
func TestACountedCopyIsNeverReplaced(t *testing.T) {
	w := newWorld(t, "v")
	w.alone(escache.LinkWFConnection, escache.DiskOutdated)
	w.record("v", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil })
	w.fleet.Hosts["n2"].Replace()
	w.steps(4)
	if v := w.volume("v"); v.Status.Repair != nil || v.Spec.LinkGeneration != 0 || w.fleet.Hosts["n2"].Has(ref("v")) {
		t.Errorf("spec %+v, status %+v", v.Spec, v.Status)
	}
}

func TestAHolderWithoutADiskWritesThrough(t *testing.T) {
	w := newWorld(t, "v")
	w.fleet.Hosts["n1"].SetDisk(ref("v"), escache.DiskDiskless)
	w.fleet.Hosts["n1"].Change(ref("v"), func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{Name: "n2", ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}}
	})
	w.record("v", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n1"} })
	w.steps(4)
	w.at("v", "Waiting", "restart its pod")
	v := w.volume("v")
	if s := w.fleet.Hosts["n1"].Status(ref("v")); s.Mode != escache.ModeWritethrough || v.Status.Authority != v1alpha1.AuthorityCeph ||
		!slices.Equal(v.Spec.Replicas, []string{"n1", "n2"}) {
		t.Errorf("mode %s, replicas %v, status %+v", s.Mode, v.Spec.Replicas, v.Status)
	}
}

func TestNothingIsReplacedWhileMuchOfTheGroupIsAway(t *testing.T) {
	w := newWorld(t, "v")
	w.fleet.Hosts["n3"].Stop()
	w.lose(2*time.Minute, "v")
	for range 4 {
		w.poll()
	}
	w.at("v", "Waiting", "2 of the 3 hosts of group g do not answer (n2, n3)")
	v := w.volume("v")
	if v.Status.Authority != v1alpha1.AuthorityCeph || !v.Spec.HasReplica("n2") {
		t.Errorf("it does not write through, or was replaced: %v, %+v", v.Spec.Replicas, v.Status)
	}
	if !w.told("RepairPaused") {
		t.Error("nobody is told of the pause")
	}
	w.fleet.Hosts["n3"].Restart(t)
	w.poll()
	w.at("v", "Copying", "")
	if !w.told("RepairResumed") {
		t.Error("nobody is told that the pause is over")
	}
}

func TestWithoutRoomTheVolumeWritesThroughUntilACopyIsBack(t *testing.T) {
	w := newWorld(t, "v")
	group := &v1alpha1.NodeGroup{}
	check(t, w.api.Get(t.Context(), client.ObjectKey{Name: "g"}, group))
	group.Spec.CordonedNodes = []string{"n3"}
	check(t, w.api.Update(t.Context(), group))
	w.alone(escache.LinkConnected, escache.DiskDiskless)
	w.steps(4)
	w.at("v", "Waiting", "n3 not ready")
	if v := w.volume("v"); v.Status.Authority != v1alpha1.AuthorityCeph || !v.Spec.HasReplica("n2") {
		t.Errorf("replicas %v, status %+v", v.Spec.Replicas, v.Status)
	}
	// The disk works again, and the copy is current.
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.record("v", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nil })
	w.steps(2)
	v := w.volume("v")
	if s := w.fleet.Hosts["n1"].Status(ref("v")); s.Mode != escache.ModeWriteback || v.Status.Repair != nil ||
		v.Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("mode %s, status %+v", s.Mode, v.Status)
	}
}

func TestACopyThatStaysWithoutALinkIsReplaced(t *testing.T) {
	w := newWorld(t, "v")
	w.alone(escache.LinkWFConnection, escache.DiskOutdated)
	w.poll()
	w.now = w.now.Add(40 * time.Second)
	// It begins to catch up, and is cut off again: what was counted before does not count.
	w.fleet.Hosts["n1"].Sync(ref("v"), 10)
	w.poll()
	w.alone(escache.LinkWFConnection, escache.DiskOutdated)
	w.now = w.now.Add(30 * time.Second)
	w.poll()
	if w.volume("v").Status.Repair != nil {
		t.Fatal("a copy that was catching up was given up")
	}
	w.now = w.now.Add(time.Minute)
	w.poll()
	w.at("v", "Beginning", "has had no link for long")
	for range 3 {
		w.poll()
	}
	w.at("v", "Copying", "")
	if v := w.volume("v"); !v.Spec.HasReplica("n3") {
		t.Errorf("replicas %v", v.Spec.Replicas)
	}
}

// The host that was chosen answers, and cannot be reached over the replication network.
func TestANewCopyThatStaysWithoutALinkIsReplacedToo(t *testing.T) {
	w := newWorld(t, "v")
	w.alone(escache.LinkConnected, escache.DiskDiskless)
	for range 4 {
		w.poll()
	}
	w.at("v", "Copying", "")
	v := w.volume("v")
	v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "alice"}
	check(t, w.api.Update(t.Context(), v))
	w.fleet.Hosts["n1"].Change(ref("v"), func(s *escache.VolumeStatus) {
		s.Peers = []escache.Peer{{Name: "n3", ConnectionState: escache.LinkWFConnection, DiskState: escache.DiskUnknown}}
	})
	for range 3 {
		w.poll()
	}
	if v := w.volume("v"); !v.Spec.HasReplica("n3") || v.Status.Repair == nil || v.Status.Repair.Lost != "n2" {
		t.Fatalf("a new copy gets no time to be linked: replicas %v, repair %+v", v.Spec.Replicas, v.Status.Repair)
	}
	w.now = w.now.Add(2 * time.Minute)
	for range 4 {
		w.poll()
	}
	w.at("v", "Copying", "")
	if v := w.volume("v"); !v.Spec.HasReplica("n2") {
		t.Errorf("replicas %v, repair %+v", v.Spec.Replicas, v.Status.Repair)
	}
}

func TestWhyTheSecondCopyIsGoneIsOnRecord(t *testing.T) {
	w := newWorld(t, "v")
	w.alone(escache.LinkWFConnection, escache.DiskOutdated)
	w.lose(2*time.Minute, "v")
	w.poll()
	if why := w.whyNot("v"); why != v1alpha1.ReasonHostSilent {
		t.Errorf("the record says %s", why)
	}
	check(t, w.api.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
	w.poll()
	if why := w.whyNot("v"); why != v1alpha1.ReasonHostDeleted {
		t.Errorf("the record says %s", why)
	}
}

func TestWhatIsAskedForIsRepairedAlsoWhenRepairIsOff(t *testing.T) {
	w := newWorld(t, "v")
	w.policy.After = 0
	w.alone(escache.LinkConnected, escache.DiskDiskless)
	w.steps(3)
	if w.volume("v").Status.Repair != nil {
		t.Fatal("repaired although it is off")
	}
	v := w.volume("v")
	v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "alice"}
	check(t, w.api.Update(t.Context(), v))
	w.steps(4)
	w.at("v", "Copying", "")
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.steps(5)
	w.at("v", repair.ReasonNone, "")
	if v := w.volume("v"); v.Annotations[v1alpha1.AnnotationRepair] != "" || !v.Spec.HasReplica("n3") {
		t.Errorf("replicas %v, asked by %q", v.Spec.Replicas, v.Annotations[v1alpha1.AnnotationRepair])
	}
}

func TestARequestWithNothingToDoIsAnswered(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.CacheVolume){
		"two copies": func(*v1alpha1.CacheVolume) {},
		"detached":   func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode = "" },
		"catching up, and in Ceph": func(v *v1alpha1.CacheVolume) {
			v.Status.Authority, v.Status.Outdated = v1alpha1.AuthorityCeph, []string{"n2"}
			v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: v1alpha1.FlushOwner(evacuation), Epoch: v.Status.Epoch}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "v")
			w.fleet.Hosts["n1"].Change(ref("v"), func(s *escache.VolumeStatus) {
				s.Peers = []escache.Peer{{Name: "n2", ConnectionState: escache.LinkConnected, DiskState: escache.DiskInconsistent}}
			})
			w.record("v", change)
			v := w.volume("v")
			v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "alice"}
			check(t, w.api.Update(t.Context(), v))
			w.poll()
			if _, left := w.volume("v").Annotations[v1alpha1.AnnotationRepair]; left || !w.told("RepairNotNeeded") {
				t.Error("nobody is told that there is nothing to do")
			}
		})
	}
}

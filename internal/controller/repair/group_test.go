package repair_test

import (
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/repair"
)

// replicasOn fails unless the volume's replicas are on these nodes.
func (w *world) replicasOn(name string, nodes ...string) {
	w.t.Helper()
	if v := w.volume(name); !slices.Equal(v.Spec.Replicas, nodes) {
		w.t.Fatalf("%s is on %v, want %v; status %+v", name, v.Spec.Replicas, nodes, v.Status)
	}
}

func TestInALargeGroupTheLeastLoadedHostGetsTheCopy(t *testing.T) {
	w := newGroup(t, 6, attached{"v", "n1", "n2"}, attached{"w", "n3", "n4"}, attached{"x", "n3", "n6"})
	w.lose(2*time.Minute, "v")
	w.steps(3)
	w.at("v", "Copying", "")
	w.replicasOn("v", "n1", "n5")
	w.fleet.Hosts["n1"].Sync(ref("v"), 100)
	w.steps(3)
	w.at("v", repair.ReasonNone, "")
	w.replicasOn("w", "n3", "n4")
}

func TestInALargeGroupSeveralCopiesAreMadeAtOnceEachOnHostsOfItsOwn(t *testing.T) {
	w := newGroup(t, 6, attached{"a", "n1", "n2"}, attached{"b", "n3", "n2"}, attached{"c", "n4", "n2"})
	w.lose(2*time.Minute, "a", "b", "c")
	w.steps(3)
	busy := map[string]string{}
	copying := 0
	for _, name := range []string{"a", "b", "c"} {
		v := w.volume(name)
		if v.Spec.HasReplica("n2") {
			continue
		}
		copying++
		for _, node := range v.Spec.Replicas {
			if busy[node] != "" {
				t.Errorf("%s is busy with %s and %s", node, busy[node], name)
			}
			busy[node] = name
		}
	}
	if copying != 2 {
		t.Errorf("%d of three volumes are copied: five hosts are enough for two", copying)
	}
	for range 4 {
		for name, holder := range map[string]string{"a": "n1", "b": "n3", "c": "n4"} {
			if !w.volume(name).Spec.HasReplica("n2") {
				w.fleet.Hosts[holder].Sync(ref(name), 100)
			}
		}
		w.steps(3)
	}
	for _, name := range []string{"a", "b", "c"} {
		w.at(name, repair.ReasonNone, "")
		if w.volume(name).Spec.HasReplica("n2") {
			t.Errorf("%s still has its copy on the lost host", name)
		}
	}
}

// A process that ends after it has put the host of the new copy on record is followed by another one.
func TestTheHostOnRecordGetsTheCopyIfItStillCan(t *testing.T) {
	for what, tc := range map[string]struct {
		down bool
		want string
	}{
		"it can":       {false, "n5"},
		"it is silent": {true, "n4"},
	} {
		t.Run(what, func(t *testing.T) {
			w := newGroup(t, 5, attached{"v", "n1", "n2"}, attached{"w", "n3", "n5"})
			w.lose(2*time.Minute, "v")
			w.steps(1)
			v := w.volume("v")
			v.Status.Repair.Substitute, v.Status.Outdated = "n5", append(v.Status.Outdated, "n5")
			v.Status.Summarize()
			check(t, w.api.Status().Update(t.Context(), v))
			if tc.down {
				// Two silent hosts of five are the trouble of a rack: somebody asks for it nevertheless.
				w.fleet.Hosts["n5"].Stop()
				v := w.volume("v")
				v.Annotations = map[string]string{v1alpha1.AnnotationRepair: "alice"}
				check(t, w.api.Update(t.Context(), v))
			}
			w.steps(3)
			w.at("v", "Copying", "")
			w.replicasOn("v", "n1", tc.want)
			w.fleet.Hosts["n1"].Sync(ref("v"), 100)
			w.steps(3)
			w.at("v", repair.ReasonNone, "")
			if s := w.volume("v").Status; len(s.Outdated) > 0 {
				t.Errorf("outdated: %v", s.Outdated)
			}
		})
	}
}

func TestAVolumeWithoutRoomTakesNoTurnFromOthers(t *testing.T) {
	w := newGroup(t, 4, attached{"large", "n1", "n2"}, attached{"small", "n3", "n2"})
	v := w.volume("large")
	v.Spec.CacheBytes = 2048 * mib // more than a host has
	check(t, w.api.Update(t.Context(), v))
	w.policy.Parallel = 1
	w.lose(2*time.Minute, "large", "small")
	w.steps(3)
	w.at("large", "Waiting", "no group has two ready nodes with 2 GiB of cache free, one of them n1")
	w.at("small", "Copying", "")
}

package repair_test

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/controller/repair"
)

const (
	putCall    = "PUT " + escache.PathReplica
	deleteCall = "DELETE " + escache.PathReplica
)

// polls polls for so long, with the same process.
func (w *world) polls(long time.Duration) {
	w.t.Helper()
	for until := w.now.Add(long); w.now.Before(until); {
		w.poll()
	}
}

// The host that was chosen answers, and says each time that it cannot do it.
func TestAHostThatCannotCreateTheCopyIsLeftForAnother(t *testing.T) {
	for _, call := range []string{putCall, deleteCall} {
		t.Run(call, func(t *testing.T) {
			w := newGroup(t, 4, attached{"v", "n1", "n2"}, attached{"w", "n4", "n2"}) // n3 has the least load
			w.fleet.Hosts["n3"].Refuse(call, escache.CodeInternal)
			w.lose(2*time.Minute, "v")
			w.polls(time.Minute)
			if s := w.volume("v").Status.Repair; s == nil || s.Substitute != "n3" {
				t.Fatalf("given up at once: %+v", s)
			}
			w.polls(100 * time.Second)
			w.at("v", "Copying", "")
			w.replicasOn("v", "n1", "n4")
			w.fleet.Hosts["n1"].Sync(ref("v"), 100)
			w.polls(30 * time.Second)
			w.at("v", repair.ReasonNone, "")
			if s := w.volume("v").Status; len(s.Outdated) > 0 {
				t.Errorf("outdated: %v", s.Outdated)
			}
		})
	}
}

// No other host of the group has room. It is tried again until it can.
func TestAHostThatCannotCreateTheCopyIsTriedAgainIfThereIsNoOther(t *testing.T) {
	for _, call := range []string{putCall, deleteCall} {
		t.Run(call, func(t *testing.T) {
			w := newWorld(t, "v")
			w.fleet.Hosts["n3"].Refuse(call, escache.CodeInternal)
			w.lose(2*time.Minute, "v")
			w.polls(10 * time.Minute)
			w.fleet.Hosts["n3"].Refuse(call, "")
			w.polls(30 * time.Second)
			w.at("v", "Copying", "")
			w.replicasOn("v", "n1", "n3")
		})
	}
}

// The volumes have the same holder, and there is one host that could take their copies. The first copy fails again and
// again: that host cannot take it, or it refuses, or the holder does.
func TestACopyThatCannotBeCreatedHoldsUpNoOther(t *testing.T) {
	for _, failure := range []struct {
		node, call string
		code       escache.Code
		step       repair.Action // at which b is then: the host fails its copy, too
	}{
		{"n3", putCall, escache.CodeInternal, repair.Copy},
		{"n3", putCall, escache.CodeStaleEpoch, repair.Copy},
		{"n3", deleteCall, escache.CodeConnected, repair.Substitute},
		{"n1", putCall, escache.CodeReplicaMismatch, repair.Copy},
	} {
		t.Run(failure.node+" "+failure.call+" "+string(failure.code), func(t *testing.T) {
			w := newWorld(t, "a", "b")
			host := w.fleet.Hosts[failure.node]
			host.Refuse(failure.call, failure.code)
			w.lose(2*time.Minute, "a", "b")
			w.polls(time.Minute)
			w.at("b", "Waiting", "is copying volume a")
			w.polls(3 * time.Minute)
			w.at("b", string(failure.step), "")
			w.polls(3 * time.Minute)
			host.Refuse(failure.call, "")
			for range 2 { // one after the other
				w.polls(time.Minute)
				w.fleet.Hosts["n1"].Sync(ref("a"), 100)
				w.fleet.Hosts["n1"].Sync(ref("b"), 100)
			}
			w.polls(time.Minute)
			for _, name := range []string{"a", "b"} {
				w.at(name, repair.ReasonNone, "")
				w.replicasOn(name, "n1", "n3")
			}
		})
	}
}

// What the host says may be about data that the record does not know. Nothing goes around that.
func TestAHostThatHasSeenALaterAttachmentIsNotLeft(t *testing.T) {
	w := newGroup(t, 4, attached{"v", "n1", "n2"}, attached{"w", "n4", "n2"})
	w.fleet.Hosts["n3"].Refuse(deleteCall, escache.CodeStaleEpoch)
	w.lose(2*time.Minute, "v")
	w.polls(10 * time.Minute)
	if s := w.volume("v").Status.Repair; s == nil || s.Substitute != "n3" {
		t.Errorf("repair %+v", s)
	}
}

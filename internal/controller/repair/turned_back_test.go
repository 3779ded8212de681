package repair_test

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/repair"
)

// TestAVolumeThatWaitsAndIsTurnedBackIsDrainedAgain: everything of it is in Ceph, and then a late call has it write
// back. If that stayed off the record and its host died, what was written since would be discarded.
func TestAVolumeThatWaitsAndIsTurnedBackIsDrainedAgain(t *testing.T) {
	for why, begin := range map[string]func(t *testing.T) *world{
		"2 of the 3 hosts of group g do not answer": func(t *testing.T) *world {
			w := newWorld(t, "v")
			w.fleet.Hosts["n3"].Stop()
			w.lose(2*time.Minute, "v")
			return w
		},
		"copying volume a": func(t *testing.T) *world {
			w := newWorld(t, "a", "v")
			w.lose(2*time.Minute, "a", "v")
			return w
		},
	} {
		t.Run(why, func(t *testing.T) {
			w := begin(t)
			holder := w.fleet.Hosts["n1"]
			is := func(authority v1alpha1.Authority) {
				t.Helper()
				s := holder.Status(ref("v"))
				if v := w.volume("v"); v.Status.Authority != authority || s.Mode != escache.ModeWritethrough {
					t.Fatalf("the truth is in %s, and it is in mode %s", v.Status.Authority, s.Mode)
				}
				w.at("v", "Waiting", why)
			}
			w.steps(4)
			is(v1alpha1.AuthorityCeph)
			holder.Stage(ref("v"), "10.0.0.1:0/1", 1, escache.ModeWriteback)
			holder.Write(ref("v"), 4096)
			w.now = w.now.Add(w.policy.Patience) // a drain does not hold up the replacement any more
			w.steps(1)
			is(v1alpha1.AuthorityCache)
			holder.Write(ref("v"), 0)
			w.steps(1)
			is(v1alpha1.AuthorityCeph)
		})
	}
}

// TestARepairDoesNotTurnALaterAttachment: the volume gets another pair of hosts after its repair was judged and before it
// is drained. A claim that the repair made then would have the volume write through until it is detached.
func TestARepairDoesNotTurnALaterAttachment(t *testing.T) {
	w := newWorld(t, "v")
	w.lose(2*time.Minute, "v")
	w.steps(1)
	w.at("v", "Beginning", "")
	holder := w.fleet.Hosts["n1"]
	holder.Before("GET "+escache.PathStatus, func() {
		v := w.volume("v")
		v.Spec.Replicas = []string{"n1", "n3"}
		check(t, w.api.Update(t.Context(), v))
		v.Status.Epoch, v.Status.Outdated, v.Status.WriteThrough, v.Status.Authority = 2, nil, nil, v1alpha1.AuthorityCache
		v.Status.Summarize()
		check(t, w.api.Status().Update(t.Context(), v))
		holder.Stage(ref("v"), "10.0.0.1:0/2", 2, escache.ModeWriteback)
	})
	w.poll()
	if v := w.volume("v"); v.Status.Epoch != 2 {
		t.Fatalf("the volume was not attached again: %+v", v.Status)
	}
	w.steps(4)
	v, mode := w.volume("v"), holder.Status(ref("v")).Mode
	if len(v.Status.WriteThrough) > 0 || v.Status.Repair != nil || mode != escache.ModeWriteback {
		t.Errorf("mode %s, status %+v", mode, v.Status)
	}
}

// TestAClaimThatAnEarlierAttachmentsRepairHasLeftEnds: an earlier build made it.
func TestAClaimThatAnEarlierAttachmentsRepairHasLeftEnds(t *testing.T) {
	w := newWorld(t, "v")
	holder := w.fleet.Hosts["n1"]
	v := w.volume("v")
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: repair.Owner, Epoch: 1}}
	v.Status.Authority = v1alpha1.AuthorityCeph
	check(t, w.api.Status().Update(t.Context(), v))
	holder.Stage(ref("v"), "10.0.0.1:0/1", 1, escache.ModeWritethrough)
	w.steps(2)
	v, mode := w.volume("v"), holder.Status(ref("v")).Mode
	if len(v.Status.WriteThrough) > 0 || v.Status.Authority != v1alpha1.AuthorityCache || mode != escache.ModeWriteback {
		t.Errorf("mode %s, status %+v", mode, v.Status)
	}
}

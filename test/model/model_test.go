package model

import (
	"strings"
	"testing"
	"time"
)

// limit of states, should a change make them many more: the exploration then ends early, and says
// so.
const limit = 6_000_000

// TestPromisesHold tries every order of steps of the protocol as it is.
func TestPromisesHold(t *testing.T) {
	for _, tc := range []struct {
		name         string
		bounds       Bounds
		depth, short int
	}{
		{"one take-over, deep", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Basic}, 18, 13},
		{"two take-overs and many faults", Bounds{Writes: 2, Epochs: 3, Faults: 3, With: Basic}, 14, 11},
	} {
		t.Run(tc.name, func(t *testing.T) {
			depth := tc.depth
			if testing.Short() {
				depth = tc.short
			}
			begin := time.Now()
			r := New(AllGuards, tc.bounds).Explore(depth, limit)
			if r.Promise != 0 {
				t.Fatalf("promise %d is broken: %s\n%s", r.Promise, r.Reason, format(r.Trace))
			}
			t.Logf("%d writes, %d attachments, %d faults: %d states, every order of %d steps, in %s", tc.bounds.Writes, tc.bounds.Epochs,
				tc.bounds.Faults, r.States, r.Depth, time.Since(begin).Round(time.Millisecond))
			for k := range kinds {
				// Where the client is on record before the device is used, there is nothing left
				// for the watch to see.
				if !r.Taken[k] && k != watchSeesClient && !testing.Short() {
					t.Errorf("never taken: %s", texts[k])
				}
			}
			if r.Depth < depth && !r.Whole {
				t.Errorf("ended at depth %d of %d: more than %d states", r.Depth, depth, limit)
			}
		})
	}
}

// TestEveryGuardIsNeeded goes without one guard after the other: a promise breaks, and the shortest
// way there is told.
func TestEveryGuardIsNeeded(t *testing.T) {
	const depth = 20
	cases := []struct {
		guard   Guard
		promise uint8
	}{
		{FenceBeforeDetach, 1},
		{FenceForYears, 1},
		{FenceKeptWhileMapped, 1},
		{ArbiterComparesAttachment, 1},
		{EpochCompared, 1},
		{ClientOnRecordBeforeUse, 1},
		{HandlerAsks, 2},
		{NoForce, 2},
		{OutdatedRefused, 2},
		{OldReplicasDropped, 2},
		{ResyncBeforeCounted, 2},
		{RecordReadBeforePeer, 2},
		{GrantAlwaysWrites, 2},
		{AuthorityCacheBeforeWriteBack, 3},
		{AuthorityReadByAttach, 4},
		{CleanReadBeforeAuthorityCeph, 4},
		{SettledAsksEveryReplica, 4},
		{StopOnlyClean, 4},
		{CompareAndSwap, 4},
		{SilentBeforeRecovery, 1},
		{OnlyTheHostItself, 4},
		{OwnCopyConfirmed, 4},
	}
	var tested Guard
	for _, tc := range cases {
		tested |= tc.guard
		t.Run(strings.ReplaceAll(Precautions[tc.guard], "/", " or "), func(t *testing.T) {
			r := New(AllGuards&^tc.guard, Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Basic}).Explore(depth, limit)
			if r.Promise != tc.promise {
				t.Fatalf("promise %d breaks without it, want %d (%d states, depth %d): %s\n%s", r.Promise, tc.promise, r.States, r.Depth,
					r.Reason, format(r.Trace))
			}
			t.Logf("without it promise %d breaks: %s\n%s", r.Promise, r.Reason, format(r.Trace))
		})
	}
	if tested != AllGuards {
		t.Errorf("guards that are not tested: %b", AllGuards&^tested)
	}
}

func format(trace []string) string { return "  " + strings.Join(trace, "\n  ") }

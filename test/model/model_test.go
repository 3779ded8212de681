package model

import (
	"strings"
	"testing"
	"time"
)

// limit of states, should a change make them many more: the exploration then ends early, and says
// so.
const limit = 8_000_000

// worlds have a family of troubles each, beside what it needs, so that each of them stays small.
var worlds = []struct {
	name         string
	bounds       Bounds
	depth, short int
}{
	{"one take-over, deep", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Basic}, 18, 12},
	{"two take-overs and many faults", Bounds{Writes: 2, Epochs: 3, Faults: 3, With: Basic}, 14, 10},
	{"removed copies", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Removed | Failing | Power | Links | Control | Crashes | Spares}, 18, 12},
	{"failing disks", Bounds{Writes: 1, Epochs: 2, Faults: 2, With: Failing | Power | Links | Control}, 14, 10},
	{"permits", Bounds{Writes: 1, Epochs: 2, Faults: 2, With: Permits | Failing | Power | Links | Control | Crashes}, 10, 9},
	{"permits and repairs", Bounds{Writes: 1, Epochs: 2, Faults: 2, With: Permits | Repairing | Failing | Links | Spares}, 10, 8},
	{"permits and restored records", Bounds{Writes: 2, Epochs: 2, Faults: 3, With: Permits | SetBack | Power | Links}, 11, 9},
	{"fenced holders that live", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Living | Links | Control}, 18, 11},
	{"fenced holders of drained volumes", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Living | Draining | Links}, 14, 10},
	{"late maps", Bounds{Writes: 1, Epochs: 2, Faults: 3, With: Late | Links | Storage}, 22, 12},
	{"drains", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Draining | Power | Links | Crashes | Spares}, 14, 10},
	{"discards", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Discards | Power | Control | Spares}, 14, 10},
	{"discards of holders that live", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Discards | Living | Links | Control}, 17, 12},
	{"restored records", Bounds{Writes: 1, Epochs: 2, Faults: 2, With: SetBack | Draining | Power | Spares}, 13, 9},
	{"restored records of volumes in use", Bounds{Writes: 2, Epochs: 3, Faults: 3, With: SetBack | Power | Links | Control | Crashes}, 12, 9},
	{"entries of others on the blocklist", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Outsiders | Power | Storage | Links}, 15, 10},
	{"repairs", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Repairing | Power | Links | Crashes | Spares}, 14, 9},
	{"repairs and drains of failing disks", Bounds{Writes: 1, Epochs: 2, Faults: 2, With: Repairing | Draining | Failing | Power}, 12, 8},
	{"copies that leave their hosts", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Repairing | Draining | Power | Links | Crashes | Spares}, 13, 9},
	{"moves to other groups", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Moving | Power | Links | Crashes | Spares}, 13, 9},
	{"moves of fenced and restored volumes", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Moving | SetBack | Draining | Control}, 12, 9},
	{"other sizes of the cache", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Resizing | Power | Links | Crashes | Spares}, 13, 9},
	{"other sizes of the cache, and restored records", Bounds{Writes: 1, Epochs: 2, Faults: 2, With: Resizing | SetBack | Draining | Control}, 12, 9},
	{"hosts outside the group", Bounds{Writes: 2, Epochs: 3, Faults: 2, With: Outside | Power | Storage | Crashes | Doubles}, 15, 9},
	{"written back without a pod", Bounds{Writes: 2, Epochs: 3, Faults: 2, With: Detached | Power | Links | Crashes | Spares}, 14, 9},
	{"written back without a pod, drained and restored", Bounds{Writes: 2, Epochs: 3, Faults: 2, With: Detached | SetBack | Draining | Control}, 13, 9},
	{"pods that are gone before they are staged",
		Bounds{Writes: 2, Epochs: 5, Faults: 2, With: GivenBack | Detached | Power | Links | Control | Crashes}, 13, 9},
	{"trims", Bounds{Writes: 3, Epochs: 4, Faults: 3, With: Trimming | Power | Control | Storage | Crashes | Spares}, 18, 9},
	{"trims on hosts of one name, and restored records", Bounds{Writes: 2, Epochs: 3, Faults: 2, With: Trimming | Doubles | SetBack | Power}, 19, 10},
	{"machines of one name", Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Doubles | Draining | Power | Links | Spares}, 13, 9},
}

// TestPromisesHold tries every order of steps of the protocol as it is.
func TestPromisesHold(t *testing.T) {
	var taken [kinds]bool
	var had [pairs]bool
	tried := 0
	for _, tc := range worlds {
		t.Run(tc.name, func(t *testing.T) {
			depth := tc.depth
			if testing.Short() {
				depth = tc.short
			}
			begin := time.Now()
			r := New(tc.bounds).Explore(depth, limit)
			tried++
			if r.Promise != 0 {
				t.Fatalf("promise %d is broken: %s\n%s", r.Promise, r.Reason, format(r.Trace))
			}
			t.Logf("%d writes, %d attachments, %d faults: %d states, every order of %d steps, in %s", tc.bounds.Writes, tc.bounds.Epochs,
				tc.bounds.Faults, r.States, r.Depth, time.Since(begin).Round(time.Millisecond))
			for k := range kinds {
				taken[k] = taken[k] || r.Taken[k]
			}
			for p := range r.Pairs {
				had[p] = had[p] || r.Pairs[p]
			}
			if r.Depth < depth && !r.Whole {
				t.Errorf("ended at depth %d of %d: more than %d states", r.Depth, depth, limit)
			}
		})
	}
	if testing.Short() || tried < len(worlds) {
		return
	}
	for k := range kinds {
		// Where the client is on record before the device is used, there is nothing left for the watch
		// to see.
		if !taken[k] && k != watchSeesClient {
			t.Errorf("never taken: %s", texts[k])
		}
	}
	for p, was := range had {
		if low, high := hostsOf(uint8(p)); !was {
			t.Errorf("the replicas were never on %s and %s", names[low], names[high])
		}
	}
}

// TestASecondIsLeft shows what docs/limits.md says of the seconds in which a peer is in sync and not
// counted. If this finds nothing any more, take the family Seconds away, and that limit.
func TestASecondIsLeft(t *testing.T) {
	r := New(Bounds{Writes: 1, Epochs: 2, Faults: 2, With: Permits | Failing | Power | Seconds}).Explore(8, limit)
	if r.Promise != 3 {
		t.Fatalf("promise %d breaks, want 3 (%d states, depth %d): %s", r.Promise, r.States, r.Depth, r.Reason)
	}
	t.Logf("%s\n%s", r.Reason, format(r.Trace))
}

// TestEveryGuardIsNeeded goes without one guard after the other: a promise breaks, and the shortest
// way there is told.
func TestEveryGuardIsNeeded(t *testing.T) {
	basic := Bounds{Writes: 2, Epochs: 2, Faults: 2, With: Basic}
	world := func(writes, faults uint8, with Family) Bounds {
		return Bounds{Writes: writes, Epochs: 2, Faults: faults, With: with}
	}
	cases := []struct {
		guard   Guard
		promise uint8
		in      Bounds
	}{
		{FenceBeforeDetach, 1, basic},
		{FenceForYears, 1, basic},
		{FenceKeptWhileMapped, 1, basic},
		{ArbiterComparesAttachment, 1, basic},
		{EpochCompared, 1, basic},
		{ClientOnRecordBeforeUse, 1, basic},
		{HandlerAsks, 2, basic},
		{NoForce, 2, basic},
		{OutdatedRefused, 2, basic},
		{OldReplicasDropped, 2, world(2, 1, Links)},
		{ResyncBeforeCounted, 2, basic},
		{RecordReadBeforePeer, 2, basic},
		{GrantAlwaysWrites, 2, basic},
		{AuthorityCacheBeforeWriteBack, 3, basic},
		{AuthorityReadByAttach, 3, basic},
		{CleanReadBeforeAuthorityCeph, 4, basic},
		{SettledAsksEveryReplica, 4, basic},
		{StopOnlyClean, 4, basic},
		{CompareAndSwap, 4, basic},
		{SilentBeforeRecovery, 1, basic},
		{OnlyTheHostItself, 4, basic},
		{OwnCopyConfirmed, 4, world(2, 2, Power|Disks)},

		{FailedDiskMarked, 2, world(1, 3, Failing|Power)},
		{FailedDiskReported, 2, world(1, 2, Failing|Power)},
		{FailedDiskRefilled, 3, world(1, 2, Failing|Power)},
		{LastCopyStays, 3, world(1, 2, Failing|Power)},
		{RenewedOutdated, 3, world(1, 2, Failing)},
		{MissingOutdated, 3, world(2, 2, Removed|Failing)},
		{RenewedTogether, 2, world(2, 2, Removed|Failing)},
		{WaitsForCsiNode, 2, world(1, 2, Permits|Failing|Power)},
		{PrimaryPeerSeen, 4, world(1, 2, Failing|Control)},

		{FencedWithoutClient, 1, world(1, 3, Late|Links|Storage)},
		{LateFenced, 1, world(1, 3, Late|Links|Storage)},
		{UnstageWaits, 1, world(1, 3, Late|Links|Storage)},
		{LateFencedInUse, 1, world(1, 3, Late|Links|Storage)},
		{PeerHasWhatIsGivenUp, 3, world(1, 1, Living|Links)},
		{CephHasWhatIsGivenUp, 3, world(1, 1, Living|Links)},
		{FencedMapNotUsed, 3, world(1, 0, Living)},

		{DrainedInOneAnswer, 4, world(1, 0, Draining)},
		{CacheBeforeRestore, 3, world(1, 0, Draining)},
		{ModeOfTheRecord, 3, world(1, 0, Draining)},

		{DiscardOfThatEpoch, 4, world(2, 2, Discards|Power)},
		{DiscardOutOfReach, 4, world(2, 2, Discards|Power|Control)},
		{DiscardFences, 3, world(2, 2, Discards|Power|Control)},
		{DiscardOutdatesAll, 4, world(1, 2, Discards|Power)},

		{EpochsReported, 2, world(1, 1, SetBack)},
		{NoteReadByAttach, 2, world(1, 2, SetBack|Power)},
		{NoteReadByStage, 2, world(1, 2, SetBack|Power)},
		{NotedBeforeUse, 2, world(1, 2, SetBack|Power)},
		{NoLaterKnown, 2, world(2, 1, Detached|SetBack)},
		{DirtyKept, 4, world(1, 2, SetBack|Draining|Power|Spares)},
		{DiscardedUpTo, 4, world(1, 1, SetBack|Spares)},

		{EntryReplaced, 1, world(1, 1, Outsiders)},
		{OutsidersLeft, 1, world(1, 2, Outsiders|Power)},
		{FencesKept, 1, world(1, 1, Outsiders)},

		{SameMachineUnfences, 1, world(1, 1, Doubles|Draining)},

		{LostOutdatedFirst, 2, world(1, 2, Repairing|Failing)},
		{NewCopyOutdated, 2, world(1, 1, Repairing|Links)},
		{DrainedUntilNewCounts, 2, world(1, 2, Repairing|Draining|Failing)},
		{CopyLeavesOnlyFromCeph, 2, world(1, 2, Repairing|Draining|Failing)},

		{MovedOnlyFromCeph, 3, world(1, 1, Moving|Power)},
		{LeftoversDropped, 2, world(2, 1, Moving)},

		{ResizedAfterDrop, 2, world(1, 1, Resizing|Crashes)},
		{OutsideOnlyFromCeph, 4, world(2, 2, Outside|Power)},
		{OutsideOutdatesAll, 2, world(2, 0, Outside)},
		{OutsideMachineKnown, 1, world(2, 1, Outside|Doubles)},

		{TrimOnlyFromCeph, 4, world(2, 2, Trimming|Power)},
		{TrimOutdatesAll, 2, Bounds{Writes: 2, Epochs: 3, With: Trimming}},

		{BootedOnRecordFirst, 2, world(1, 1, Power)},
		{BootedAlwaysWrites, 2, world(1, 2, Power|Links)},
		{BootedWaitsForUser, 3, world(1, 2, Failing|Power)},
		{BootedWaitsForFenced, 2, world(1, 1, Power)},
		{PeerWaitsForBooted, 3, world(1, 2, Power|Disks)},

		{PermitFromArbiter, 2, world(1, 1, Permits|Links)},
		{PermitInStatus, 2, world(1, 1, Permits|Links)},
		{AskedIsAPermit, 2, world(1, 1, Permits|Links)},
		{FreezesBeforeDropped, 2, world(1, 1, Permits|Links)},
		{PermitReadBeforeLink, 2, world(1, 1, Permits|Links)},
		{PermitEndsWithAttachment, 2, world(1, 1, Permits|Links)},
	}
	tested := [guardsEnd]bool{}
	for _, tc := range cases {
		tested[tc.guard] = true
		t.Run(strings.ReplaceAll(Precautions[tc.guard], "/", " or "), func(t *testing.T) {
			r := New(tc.in, tc.guard).Explore(26, limit)
			if r.Promise != tc.promise {
				t.Fatalf("promise %d breaks without it, want %d (%d states, depth %d): %s\n%s", r.Promise, tc.promise, r.States, r.Depth,
					r.Reason, format(r.Trace))
			}
			t.Logf("without it promise %d breaks (%d states): %s\n%s", r.Promise, r.States, r.Reason, format(r.Trace))
		})
	}
	for g := range guardsEnd {
		if !tested[g] {
			t.Errorf("not tested: %s", Precautions[g])
		}
	}
}

func format(trace []string) string { return "  " + strings.Join(trace, "\n  ") }

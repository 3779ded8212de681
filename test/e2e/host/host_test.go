//go:build e2e

// Package host tests escached on the real kernels of three hosts with a real Ceph. It runs inside a
// lab: `lab run -- host.test`.
package host

import (
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/internal/shard"
	"github.com/escache/escache-csi/test/labtest"
)

// always are the tests that every shard has: each tries to break the promise in a way that has been found before.
var always = []string{
	"an older epoch is refused",
	"a second host is refused while the first holds the image",
	"a primary cut off from everything freezes and goes on after it",
	"a primary that lost its peer goes on alone when granted",
	"failover loses no acknowledged block",
	"failover under a running writer loses no acknowledged block",
	"a device that was taken over is given up",
	"a stale replica that returns alone is not promoted",
	"a failed disk of the primary freezes it until that is on record",
	"a peer without a disk is lost, and the primary is not frozen",
}

// TestHosts runs everything in one lab, one after the other, because most of it breaks the lab on
// purpose. Each test puts right what it broke and leaves nothing on the hosts, which is checked
// after each. A shard has some of it (test/internal/shard).
func TestHosts(t *testing.T) {
	lab := labtest.Open(t)
	tests := []struct {
		name string
		run  func(*testing.T, *labtest.Lab)
	}{
		{"escached keeps the contract of the API", escachedConforms},
		{"dm-writecache keeps the contract of a cache's engine", keepsTheContract(escache.EngineWritecache)},
		{"the log keeps the contract of a cache's engine", keepsTheContract(escache.EngineLog)},
		{"dm-writecache writes back what was overwritten on its way, in write-through", overwrittenOnItsWay},
		{"the process of a log is killed and upgraded under writers", aCacheProcessIsReplacedUnderWriters},
		{"preflight names what is wrong with a host", preflightNamesWhatIsWrong},
		{"an older epoch is refused", olderEpochIsRefused},
		{"a second host is refused while the first holds the image", secondHostIsRefused},
		{"a zeroed superblock is refused and nothing is formatted", zeroedSuperblockIsRefused},
		{"a damaged copy condemns nobody", damagedCopyCondemnsNobody},
		{"a damaged copy is not copied over a good one", damagedCopyIsNotCopied},
		{"a damaged record of a log is not copied over a good one", damagedRecordIsNotCopied},
		{"a cache of another volume is refused", foreignCacheIsRefused},
		{"a removed replica can be erased whole", removedIsErased},
		{"a peer without the secret of the link is turned away, and nobody can read it", secretKeepsStrangersOut},
		{"flush while Ceph stands still says what is left and resumes", flushSurvivesStalledCeph},
		{"a connected cache takes the memory that escached counts", memoryIsCounted},
		{"a cache for which there is no memory is not connected", nothingWithoutMemory},
		{"restart of escached under load is not noticed", restartIsNotNoticed},
		{"escached killed at every crash point of every verb", killedAtEveryCrashPoint},
		{"escached killed at every crash point of a pause", killedInAPause},
		{"cycles leave nothing behind", cyclesLeaveNothing},
		{"polls start no process", pollsStartNothing},
		{"escached is small and idle when nothing happens", smallAndIdle},
		{"a primary cut off from everything freezes and goes on after it", cutOffPrimaryFreezes},
		{"a primary that lost its peer goes on alone when granted", grantedPrimaryGoesOnAlone},
		{"a primary that is frozen during a flush goes on when the arbiter can be reached", frozenDuringAFlushGoesOn},
		{"a primary that is frozen has its booted peer on record before it goes on", bootedPeerGetsNothingUncounted},
		{"failover loses no acknowledged block", func(t *testing.T, lab *labtest.Lab) { failover(t, lab, 64<<20, false) }},
		{"failover under a running writer loses no acknowledged block", func(t *testing.T, lab *labtest.Lab) { failover(t, lab, 8<<20, true) }},
		{"a synced file survives a power loss right after it, ext4", func(t *testing.T, lab *labtest.Lab) { syncedFileSurvives(t, lab, "ext4") }},
		{"a synced file survives a power loss right after it, xfs", func(t *testing.T, lab *labtest.Lab) { syncedFileSurvives(t, lab, "xfs") }},
		{"a device that was taken over is given up", supersededIsGivenUp},
		{"redundancy comes back on the third host under a running writer", redundancyComesBackOnTheThirdHost},
		{"a stale replica that returns alone is not promoted", staleReplicaIsNotPromoted},
		{"a failed local disk on the primary is not noticed", failedDiskIsNotNoticed},
		{"a failed disk of the secondary goes on record at once", secondsDiskFails},
		{"a peer without a disk is lost, and the primary is not frozen", peerWithoutDiskIsLost},
		{"a failed disk of the secondary freezes the primary if nobody hears of it", secondsDiskFailsUnheard},
		{"a failed disk of the primary freezes it until that is on record", primarysDiskFails},
		{"a link that stops in the exchange of bitmaps is connected anew", exchangeStops},
		{"a disk that has failed is not used after a reboot", markedDiskIsNotUsed},
		{"a disk that works again is filled by its peer", diskWorksAgain},
		{"a held device that was taken over is given up", heldIsGivenUp},
	}
	left := slices.Clone(always)
	for number, test := range tests {
		left = slices.DeleteFunc(left, func(name string) bool { return name == test.name })
		// The first one has shards of its own.
		if number > 0 && !shard.Has(t, number) && !slices.Contains(always, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			test.run(t, lab)
			if !t.Failed() {
				lab.AssertNothingLeft(t)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("there are no tests %q", left)
	}
}

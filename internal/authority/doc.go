// Package authority holds the one rule of who may write to a volume.
//
// # The problem
//
// A volume's data is in up to three places: the RBD image in Ceph, and two copies of the cache in
// front of it. An acknowledged write is on both copies at once, and reaches Ceph later. So at any
// moment the image may be old, and after the loss of a host or of a link one copy may be old too.
// Starting from an old place loses acknowledged writes, and two hosts that both start destroy the
// image.
//
// # The record
//
// No host can know by itself which place is current: the other one may be dead, or only cut off.
// So it is written down once, in the status of the CacheVolume (the record):
//
//   - authority says where the truth is. Ceph: the cache is clean and stays so; any node of the
//     group may have the volume, and replicas may be dropped and created at will. Cache: there may be
//     dirty data; only a node whose replica is current may have the volume.
//   - attachedNode says who has the volume; epoch counts its attachments.
//   - outdated lists the replicas that lack acknowledged writes. A node leaves the list only
//     after a completed resync, or by an attachment that creates all replicas again.
//   - fenced lists the Ceph clients that were put on the blocklist so that they cannot write. A node that lost
//     the volume by force, and of which no client was known, is listed without one: its map may still come.
//
// # The order
//
// Authority moves from Ceph to Cache before write-back begins, and from Cache to Ceph only after
// escached has reported zero dirty bytes and that nothing can become dirty any more. A holder that
// nobody can wait for is fenced before the record says that it is detached.
//
// # A record that was set back
//
// A restore of etcd brings back rights that are over, and the hosts that know it may be down. The image's
// metadata tells of the newest attachment, and no host can read it. So csi-controller reads it before each of its
// own steps that begins something, and for csi-node before a device is connected. The arbiter does not ask: a
// holder that has lost its peer must go on without Ceph. Nor is it always asked: DRBD asks for a promotion
// only where the peer is away and not yet known to be outdated.
//
// # The questions
//
//   - csi-controller: may this node have the volume ([Attach]), or have it to trim it ([AttachToTrim])? May it be taken from this node
//     ([Detach])? Has the truth moved to Ceph by now ([Settled], [Drained], [EndFlush])? Which host
//     writes back first ([Flushers]), whom to fence ([Clients], [Late]), which entry may leave the
//     blocklist ([MapGone]), which copies are created again and which of them do not count yet ([Renewed],
//     [Unfilled]), may a lost replica be replaced ([Substitutable], [Resynced]), and may
//     dirty data be given up ([Discard])?
//   - csi-node, right before it connects the device: may this node write, in this epoch ([MayStage])? Has
//     csi-controller found since that the record is as new as the image's metadata ([Compared],
//     [NotBehind])?
//   - The arbiter, asked by a host that has lost its peer and whose I/O is frozen until the answer:
//     may it go on alone ([MayGoOnAlone])?
//
// # How the answers are used
//
// What a host says is a [Report]. Only [Heard] makes one. It believes an answer only if the machine on
// record gave it, if it is of no later attachment than the record's, and if it does not deny a
// replica that may hold the truth. Before an attachment begins, [Confirmed] looks at the reports of
// all hosts that may have a replica.
//
// The functions are pure: they look at the CacheVolume and at what hosts reported, and do nothing.
// The caller acts, and writes the record with the resourceVersion that it had read (compare and
// swap). If two callers act on one record, one write fails, and that caller starts again.
//
// Package test/model runs these functions against every order of crashes, cuts and delays that it
// can reach. It also drops one precaution at a time and shows which promise then breaks.
package authority

import (
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Reasons why something may not be done.
var (
	// ErrRefused means that the state of the volume forbids it. The text says what has to happen
	// first.
	ErrRefused = errors.New("refused")
	// ErrUnreachable means that a host has to answer before this can be decided.
	ErrUnreachable = errors.New("unreachable")
	// ErrForeignNode means that the node is not in the volume's group.
	ErrForeignNode = fmt.Errorf("not in the volume's group: %w", ErrRefused)
	// ErrStaged means that the node lives, and still has the device.
	ErrStaged = fmt.Errorf("not unstaged: %w", ErrRefused)
	// ErrOutdated means that the node's own replica is on record as outdated.
	ErrOutdated = fmt.Errorf("on record as outdated: %w", ErrRefused)
)

// InCeph reports whether the truth is in Ceph. That includes a volume that was never attached: its
// authority is empty.
func InCeph(v *v1alpha1.CacheVolume) bool { return v.Status.Authority != v1alpha1.AuthorityCache }

// Current returns the replica nodes that are not on record as outdated.
func Current(v *v1alpha1.CacheVolume) []string {
	return slices.DeleteFunc(slices.Clone(v.Spec.Replicas), v.Status.IsOutdated)
}

// Package redundancy says of a volume whether it has two current copies, and if not, why. It is the one
// place where that is decided: the condition Redundant, the repair, the metrics, the web page and the
// kubectl plugin ask here. It is pure.
package redundancy

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// Evidence is what csi-controller has found out about a copy that is not current. The zero value is for
// a caller that has only read the records.
type Evidence struct {
	// Asked means that the hosts were asked.
	Asked bool
	// Node has the copy that all this is about, if the record counts that copy: no pod has the volume, and
	// the copy cannot be used. Empty: it is about the copy that is on record as outdated.
	Node string
	// Loss is what the host of the copy and the holder prove.
	Loss authority.CopyLoss
	// Silent is when the host of the copy was last seen, if it does not answer now and has not for long.
	Silent time.Time
	// Lately means that Silent is not so long ago that the host counts as lost.
	Lately bool
	// Deleted means that Kubernetes has no node of that name.
	Deleted bool
	// Away means that the host answers, and that the copy has been without a link for long.
	Away bool
}

// Finding is what is known of a volume's copies.
type Finding struct {
	// Reason is one of v1alpha1's reasons of ConditionRedundant.
	Reason string
	// Lost is the node whose copy is not current, or cannot be used while no pod has the volume. It is empty
	// if there are two copies, and where only a condition speaks of one.
	Lost string
	// Message is for people.
	Message string
	// Since is since when there has been one copy; zero if not on record.
	Since time.Time
	// InCeph means that Ceph has everything, so that the loss of the last copy loses nothing.
	InCeph bool
	// Proven means that the copy does not come back by itself, or that its place is lost. It is false for
	// what only the record says, and for a copy that may be catching up.
	Proven bool
	// ExposedBytes are dirty on one host only, when last recorded.
	ExposedBytes int64
}

// Whole reports whether there are two current copies, or none is needed.
func (f Finding) Whole() bool { return f.Reason == "" || f.Reason == v1alpha1.ReasonTwoCopies }

// Of judges one volume. group is its NodeGroup, nil if that is not known.
func Of(v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup, e Evidence) Finding {
	lost := Lost(v)
	if lost == "" && v.WithoutPod() {
		lost = e.Node
	}
	found := recorded(v)
	if lost == "" && (!v.WithoutPod() || e.Asked || found == nil) {
		return Finding{Reason: v1alpha1.ReasonTwoCopies, Message: TwoCopies}
	}
	f := Finding{Lost: lost, InCeph: authority.InCeph(v), Since: since(v, e)}
	if !f.InCeph {
		f.ExposedBytes = v.Status.DirtyBytes
	}
	if lost == "" { // csi-controller has asked the hosts, and this is what it found
		f.Reason, f.Message = found.Reason, found.Message
		return f
	}
	f.Reason, f.Message, f.Proven = why(v, lost, group, e)
	return f
}

// TwoCopies is the message where nothing is wrong.
const TwoCopies = "every acknowledged write is on two hosts or in Ceph"

// NeedsNoCopy reports whether a volume that is in Ceph is detached, or attached without a cache. The next attachment in its
// group creates its replicas again.
func NeedsNoCopy(v *v1alpha1.CacheVolume) bool {
	return (v.Status.AttachedNode == "" || v.Status.UncachedAttached()) && authority.InCeph(v)
}

// Lost returns the node whose copy of the volume is not current, or "". A volume that needs no copy has lost none.
func Lost(v *v1alpha1.CacheVolume) string {
	if NeedsNoCopy(v) {
		return ""
	}
	for _, node := range v.Spec.Replicas {
		if v.Status.IsOutdated(node) {
			return node
		}
	}
	return ""
}

// recorded is the condition, if it counts. csi-node keeps it while the volume is attached, and csi-controller
// while it is dirty and no node has it.
func recorded(v *v1alpha1.CacheVolume) *metav1.Condition {
	c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRedundant)
	if v.Status.AttachedNode == "" && !v.WithoutPod() || c == nil || c.Status != metav1.ConditionFalse {
		return nil
	}
	return c
}

func since(v *v1alpha1.CacheVolume, e Evidence) time.Time {
	if c := recorded(v); c != nil {
		return c.LastTransitionTime.Time
	}
	if r := v.Status.Repair; r != nil {
		return r.Since.Time
	}
	return e.Silent
}

func why(v *v1alpha1.CacheVolume, lost string, group *v1alpha1.NodeGroup, e Evidence) (reason, message string, proven bool) {
	// Nobody fills a copy while no pod has the volume.
	old := v.WithoutPod() && v.Status.IsOutdated(lost)
	if reason, message = found(v, lost, group, e); reason != "" {
		silent := reason == v1alpha1.ReasonHostSilent || reason == v1alpha1.ReasonHostDeleted
		return reason, message, old || reason != v1alpha1.ReasonPeerOutdated && (!silent || !e.Lately)
	}
	c := recorded(v)
	switch {
	case old && (c == nil || c.Reason == v1alpha1.ReasonPeerOutdated || e.Asked && Explains(c.Reason, v1alpha1.ReasonPeerLost)):
		return v1alpha1.ReasonPeerOutdated, fmt.Sprintf("the copy on %s is not current, and nobody fills it while no node has the volume",
			lost), true
	case old:
		return c.Reason, c.Message, true
	case c == nil:
		return v1alpha1.ReasonPeerOutdated, fmt.Sprintf("the copy on %s is not current", lost), false
	case e.Asked && Explains(c.Reason, v1alpha1.ReasonPeerLost): // it was so, and is not any more
		return v1alpha1.ReasonPeerLost, fmt.Sprintf("the copy on %s is not linked", lost), false
	default:
		return c.Reason, c.Message, false
	}
}

// found returns what is known about the lost copy that csi-node does not see. The reason is empty if
// nothing is.
func found(v *v1alpha1.CacheVolume, lost string, group *v1alpha1.NodeGroup, e Evidence) (reason, message string) {
	say := func(reason, format string, args ...any) (string, string) { return reason, fmt.Sprintf(format, args...) }
	repair := v.Status.Repair
	switch {
	case lost == v.Status.AttachedNode:
		return say(v1alpha1.ReasonLocalDiskLost, "the disk of the copy on %s has failed: the pod there works with the copy on %s, over "+
			"the network", lost, authority.Partner(v, lost))
	case !v.WithoutPod() && repair != nil && repair.Substitute == lost && e.Loss == authority.NoLoss && e.Silent.IsZero() && !e.Away:
		return say(v1alpha1.ReasonPeerOutdated, "a new copy is being made on %s", lost)
	case e.Loss == authority.DiskLost:
		return say(v1alpha1.ReasonPeerDiskLost, "the disk of the copy on %s has failed", lost)
	case group != nil && slices.Contains(Left(v, group), lost):
		return say(v1alpha1.ReasonHostLeft, "node %s, which had the second copy, is not in group %s any more", lost, group.Name)
	case e.Loss == authority.OtherMachine:
		return say(v1alpha1.ReasonHostReinstalled, "node %s has other disks than those with the copy: the host or its disks were "+
			"replaced", lost)
	case e.Loss == authority.ReplicaGone:
		return say(v1alpha1.ReasonReplicaMissing, "node %s has no copy on its disks any more", lost)
	case !e.Silent.IsZero() && e.Deleted:
		return say(v1alpha1.ReasonHostDeleted, "Kubernetes has no node %s any more, and its host has not answered since %s", lost,
			at(e.Silent))
	case !e.Silent.IsZero():
		return say(v1alpha1.ReasonHostSilent, "%s", NotSeen(lost, e.Silent))
	case e.Away:
		return say(v1alpha1.ReasonCopyStaysAway, "node %s answers, and the copy there has had no link for long: check the replication "+
			"network", lost)
	default:
		return "", ""
	}
}

// NotSeen says since when a host does not answer.
func NotSeen(node string, since time.Time) string {
	return fmt.Sprintf("node %s has not answered since %s", node, at(since))
}

func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// Reasons returns every reason for one copy, the most serious first.
func Reasons() []string {
	return append([]string{v1alpha1.ReasonLocalDiskLost, v1alpha1.ReasonPeerDiskLost, v1alpha1.ReasonPeerLost, v1alpha1.ReasonPeerOutdated},
		explaining()...)
}

// explaining are the reasons that only csi-controller can find out.
func explaining() []string {
	return []string{
		v1alpha1.ReasonHostSilent, v1alpha1.ReasonHostDeleted, v1alpha1.ReasonHostLeft, v1alpha1.ReasonHostReinstalled,
		v1alpha1.ReasonReplicaMissing, v1alpha1.ReasonCopyStaysAway,
	}
}

// Explains reports whether a reason on record says more than the one that csi-node sees, so that
// csi-node leaves it.
func Explains(recorded, seen string) bool {
	return seen == v1alpha1.ReasonPeerLost && slices.Contains(explaining(), recorded)
}

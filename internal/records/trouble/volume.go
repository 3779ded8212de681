package trouble

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/redundancy"
)

// patience is how long a change of a volume may take to reach its host before that is told.
const patience = time.Minute

// OfVolume returns what is wrong with a volume. group is its NodeGroup, nil if that is not known.
func OfVolume(v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup, how remedy.Escached, now time.Time) []Trouble {
	t := &ofVolume{v: v, how: how}
	t.copies(group)
	t.leftDirty()
	t.changes(now)
	return t.all
}

// ofVolume collects what is wrong with a volume.
type ofVolume struct {
	v   *v1alpha1.CacheVolume
	how remedy.Escached
	all []Trouble
}

func (t *ofVolume) add(condition, reason, what string) {
	at := remedy.Place{Volume: t.v.Name, Host: t.v.Status.AttachedNode, Group: t.v.Spec.Group}
	if at.Host == "" {
		at.Host = strings.Join(Holders(t.v), " or ")
	}
	t.all = append(t.all, At(Volume, t.v.Name, condition, reason, what, at, t.how))
}

func (t *ofVolume) condition(kind string) *metav1.Condition {
	return meta.FindStatusCondition(t.v.Status.Conditions, kind)
}

// recordBehind says whether the record is older than what a disk says.
func (t *ofVolume) recordBehind() bool {
	return meta.IsStatusConditionTrue(t.v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks)
}

// copies tells what is wrong with the record of its copies, with a copy, and with their number.
func (t *ofVolume) copies(group *v1alpha1.NodeGroup) {
	if c := t.condition(v1alpha1.ConditionRecordBehindDisks); t.recordBehind() {
		t.add(c.Type, c.Reason, c.Message)
	}
	if c := t.condition(v1alpha1.ConditionCopyProven); c != nil && c.Status == metav1.ConditionFalse {
		t.add(c.Type, c.Reason, c.Message)
	}
	one := redundancy.Of(t.v, group, redundancy.Evidence{})
	for _, c := range t.v.Status.Faults() {
		if c.Type != v1alpha1.ConditionRedundant || one.Whole() { // else told below
			t.add(c.Type, c.Reason, c.Message)
		}
	}
	if !one.Whole() {
		t.add(v1alpha1.ConditionRedundant, one.Reason, one.Message+"; "+Stake(one))
	}
}

// leftDirty tells that data of a detached volume is not in Ceph, or what its release waits for.
func (t *ofVolume) leftDirty() {
	switch stuck := Unreachable(t.v); {
	case stuck == "", t.recordBehind(): // nothing may be discarded on such a record
	case t.v.Spec.Release: // its condition says what it waits for
	default:
		t.add("", remedy.LeftDirty, stuck)
	}
	if c := t.condition(v1alpha1.ConditionReleased); t.v.Spec.Release && c != nil {
		t.add(c.Type, c.Reason, "it waits to be released: "+c.Message)
	}
}

// changes tells of what was asked for and is not done: another VolumeAttributesClass, a move, its deletion.
func (t *ofVolume) changes(now time.Time) {
	v := t.v
	if c := t.condition(v1alpha1.ConditionModified); c != nil && c.Status == metav1.ConditionFalse && v.Status.AttachedNode != "" &&
		(c.Reason != v1alpha1.ReasonModificationPending || now.Sub(c.LastTransitionTime.Time) > patience) {
		t.add(c.Type, c.Reason, "its VolumeAttributesClass is not in effect: "+c.Message)
	}
	if c := t.condition(v1alpha1.ConditionCacheResized); c != nil && v.Spec.CacheToResize() &&
		(c.Reason == v1alpha1.ReasonResizeNoRoom || c.Reason == v1alpha1.ReasonResizeNoMemory) {
		t.add(c.Type, c.Reason, "its cache does not have the size of its VolumeAttributesClass: "+c.Message)
	}
	if c := t.condition(v1alpha1.ConditionUncached); c != nil && v.Status.UncachedAttached() {
		t.add(c.Type, c.Reason, "it is as slow as Ceph: "+c.Message)
	}
	if moving := Move(v); moving != "" {
		reason := v1alpha1.ReasonMoveUnderWay
		if c := MovingCondition(v); c != nil {
			reason = c.Reason
		}
		t.add(v1alpha1.ConditionMoving, reason, moving)
	}
	if !v.DeletionTimestamp.IsZero() {
		t.add("", remedy.InDeletion, "it has been in deletion since "+v.DeletionTimestamp.Format(time.DateTime))
	}
}

// Stake says what the loss of the last copy would lose.
func Stake(f redundancy.Finding) string {
	if f.InCeph {
		return "Ceph has everything"
	}
	text := v1alpha1.HumanBytes(f.ExposedBytes) + " are on one host only"
	if !f.Since.IsZero() {
		text += ", since " + f.Since.UTC().Format(time.DateTime) + " UTC"
	}
	return text
}

// Unreachable describes a detached volume that may hold data that is not in Ceph; "" for all others.
func Unreachable(v *v1alpha1.CacheVolume) string {
	if !v.Status.LeftDirty() {
		return ""
	}
	return fmt.Sprintf("it is not attached, and %s in the cache on %s may not be in Ceph", v1alpha1.HumanBytes(v.Status.DirtyBytes),
		strings.Join(Holders(v), " and "))
}

// Holders returns the nodes with a current copy or, if there is none, those with any copy.
func Holders(v *v1alpha1.CacheVolume) []string {
	current := authority.Current(v)
	if len(current) == 0 {
		return v.Spec.Replicas
	}
	return current
}

// NextStep says what an operator should do next with a volume.
func NextStep(v *v1alpha1.CacheVolume) string {
	switch {
	case meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks):
		return remedy.Of(v1alpha1.ConditionRecordBehindDisks, "LaterAttachmentSeen", remedy.Place{}, remedy.Escached{})
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return "decide which copy counts: kubectl escache adopt --all says what image and hosts say, and what helps"
	case v.Spec.Release:
		return "wait: it is being released, and its image stays; kubectl escache release --cancel --volume " + v.Name + " keeps the volume"
	case v.Status.Move != nil:
		return "wait: it is on its way to group " + v.Status.Move.Group
	case Unreachable(v) != "":
		return remedy.Of("", remedy.LeftDirty, remedy.Place{Volume: v.Name, Host: strings.Join(Holders(v), " or ")}, remedy.Escached{})
	case v.Status.TrimAttached():
		return "wait: node " + v.Status.AttachedNode + " gives its free space back to Ceph, and no pod has it; a pod that starts gets it"
	case v.Status.FlushAttached():
		return "wait: node " + v.Status.AttachedNode + " writes it back, and no pod has it"
	case v.Status.AttachedNode == "":
		return "nothing: it can be attached to any host of the group"
	case len(v.Status.WriteThrough) > 0 && v.Status.Authority != v1alpha1.AuthorityCache:
		return "its pod can be moved at once; kubectl escache uncordon, or deleting the CacheFlush, restores write-back"
	case v.Status.Phase != v1alpha1.VolumeReady:
		return "wait: its image is being created"
	default:
		return "nothing; before you take its host down: kubectl escache evacuate " + v.Status.AttachedNode
	}
}

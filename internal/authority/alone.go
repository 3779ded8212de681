package authority

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// RefusedError says why a host may not go on without its peer. It wraps ErrRefused.
type RefusedError struct {
	// Code is the arbiter's answer in the escache API.
	Code   escache.Code
	Reason string
}

// Error returns the reason.
func (e *RefusedError) Error() string { return e.Reason }

// Unwrap returns ErrRefused.
func (e *RefusedError) Unwrap() error { return ErrRefused }

// Grant holds the status fields to write before a host may go on without its peer, or without its own
// disk. The permission takes effect with the write, not before.
type Grant struct {
	Outdated   []string
	Conditions []metav1.Condition
}

// MayGoOnAlone decides whether the host that asks may go on without its peer: it must be the
// attached node, in the current epoch, with a current replica of its own. If not, the error is a
// *RefusedError.
//
// The peer may also be a former one, which a repair has replaced: a host with a replica that is no
// longer the volume's. It may be gone without only while no other copy is current: who asks has not
// got to know the new one yet, and writes nothing to it.
//
// The grant changes the record even if the peer is already listed as outdated: the cache watch may
// be about to remove the peer after an earlier resync, and its compare-and-swap must fail. That is
// why the condition's message carries the time.
func MayGoOnAlone(v *v1alpha1.CacheVolume, r escache.OutdatePeerRequest, now time.Time) (Grant, error) {
	if err := refusal(v, r); err != nil {
		return Grant{}, err
	}
	return outdate(v, r.Peer, v1alpha1.ReasonPeerLost, fmt.Sprintf("%s goes on without the replica on %s, which is outdated since %s",
		r.Node, r.Peer, now.UTC().Format(time.RFC3339Nano))), nil
}

// outdate puts a node on the list of outdated ones. A message that was not there before makes it a
// change in any case.
func outdate(v *v1alpha1.CacheVolume, node, reason, message string) Grant {
	outdated := slices.Clone(v.Status.Outdated)
	if !slices.Contains(outdated, node) {
		outdated = append(outdated, node)
	}
	conditions := slices.Clone(v.Status.Conditions)
	meta.SetStatusCondition(&conditions, metav1.Condition{
		Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	})
	return Grant{Outdated: outdated, Conditions: conditions}
}

func refusal(v *v1alpha1.CacheVolume, r escache.OutdatePeerRequest) error {
	s := &v.Status
	refuse := func(code escache.Code, format string, args ...any) error {
		return &RefusedError{code, fmt.Sprintf("volume %s: %s", v.Name, fmt.Sprintf(format, args...))}
	}
	switch {
	case r.Peer == "" || r.Peer == r.Node:
		return refuse(escache.CodeFencingRefused, "%q is no peer of %s", r.Peer, r.Node)
	case s.AttachedNode != r.Node:
		return refuse(escache.CodeStaleEpoch, "it is attached to %q in epoch %d, not to %s", s.AttachedNode, s.Epoch, r.Node)
	case s.Epoch != r.Epoch:
		return refuse(escache.CodeStaleEpoch, "%s has it in epoch %d, and asks for epoch %d", s.AttachedNode, s.Epoch, r.Epoch)
	case s.IsOutdated(r.Node):
		return refuse(escache.CodeOutdated, "%s itself is on record as outdated", r.Node)
	case !v.Spec.HasReplica(r.Node) || !v.Spec.HasReplica(r.Peer) && !s.IsOutdated(Partner(v, r.Node)):
		return refuse(escache.CodeFencingRefused, "its replicas are on %v", v.Spec.Replicas)
	case r.ImageID != "" && s.ImageID != "" && r.ImageID != s.ImageID:
		return refuse(escache.CodeIdentityMismatch, "it is image id %s, and the replica is of %s", s.ImageID, r.ImageID)
	default:
		return nil
	}
}

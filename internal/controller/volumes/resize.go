package volumes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/placement"
)

// seat is where both replicas of a volume are about to be created again, and how large.
type seat struct {
	placement.Placement

	cacheBytes int64
	// reason and waits say why the cache does not get the size that it is to have.
	reason string
	waits  error
}

// seat takes a pair of hosts around the node, without some, for the size that the cache is to have. If there is no room
// for that, or no memory, the cache keeps its size: a wish does not keep a volume from its pod. The error
// is placement.ErrNoFit.
func (s *Steps) seat(v *v1alpha1.CacheVolume, node string, without []string) (seat, error) {
	at := seat{cacheBytes: v.Spec.FinalCacheBytes()}
	if v.Spec.CacheToResize() && !s.HasMemory(v, node, at.cacheBytes) {
		at.reason = v1alpha1.ReasonResizeNoMemory
		at.waits = fmt.Errorf("node %s has too little memory available to connect a cache of that size: %w", node, ErrNoRoom)
	} else {
		at.reason = v1alpha1.ReasonResizeNoRoom
		at.Placement, at.waits = s.Book.Around(v, node, at.cacheBytes, without...)
	}
	if at.waits == nil || v.Spec.WantedCacheBytes == 0 {
		return at, at.waits
	}
	var err error
	at.cacheBytes = v.Spec.CacheBytes
	if at.Placement, err = s.Book.Around(v, node, at.cacheBytes, without...); err == nil {
		return at, nil
	}
	// Hosts that are too full for a new replica have the place of the one that is replaced.
	partner := authority.Partner(v, node)
	if v.Spec.HasReplica(node) && s.Book.Ready(v.Spec.Group, node) && s.Book.Ready(v.Spec.Group, partner) &&
		!slices.Contains(without, partner) {
		at.Placement = placement.Placement{Group: v.Spec.Group, Primary: node, Partner: partner}
		return at, nil
	}
	return at, err
}

// HasMemory reports whether the node had memory to connect a cache of that size when it was last asked, or
// has not said so.
func (s *Steps) HasMemory(v *v1alpha1.CacheVolume, node string, cacheBytes int64) bool {
	free, known := s.Book.Connectable(v.Spec.Group, node)
	return !known || cacheBytes <= free
}

// showSize enters into the status what became of a change of the size. The caller's next update writes it.
func (s *Steps) showSize(v *v1alpha1.CacheVolume, at seat) {
	v.Status.Summary.Cache = v.Spec.CacheText()
	if !v.Spec.CacheToResize() {
		meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionCacheResized)
		return
	}
	setResized(v, at.reason, fmt.Sprintf("the cache keeps its %s in this attachment, and is to have %s: %v",
		v1alpha1.HumanBytes(v.Spec.CacheBytes), v1alpha1.HumanBytes(v.Spec.WantedCacheBytes), at.waits))
}

// tellSize emits an Event about a change of the size, or about what is in its way.
func (s *Steps) tellSize(v *v1alpha1.CacheVolume, before int64, at seat) {
	switch c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCacheResized); {
	case before != v.Spec.CacheBytes:
		s.Events.Eventf(v, nil, corev1.EventTypeNormal, v1alpha1.ConditionCacheResized, "Resize", "the cache has %s now, in place of %s",
			v1alpha1.HumanBytes(v.Spec.CacheBytes), v1alpha1.HumanBytes(before))
	case c != nil && at.waits != nil:
		s.Events.Eventf(v, nil, corev1.EventTypeWarning, "CacheNotResized", "Resize", "%s", c.Message)
	}
}

// ReportResize records what a change of the cache's size waits for. Once nothing is to change any more, it
// removes what was recorded. It returns the volume, and whether what it waits for is another thing than
// before.
func (l *Locked) ReportResize(ctx context.Context, id string) (v *v1alpha1.CacheVolume, waits bool, err error) {
	_, err = under(l, id, resizeReport, func() (struct{}, error) {
		v, err = l.steps.Volume(ctx, id)
		if errors.Is(err, ErrNotFound) {
			return struct{}{}, nil
		}
		if err != nil {
			return struct{}{}, err
		}
		before := v.Status.DeepCopy()
		v.Status.Summary.Cache = v.Spec.CacheText()
		reason, message := resizeWaits(v)
		if waits = reason != ""; waits {
			waits = setResized(v, reason, message)
		} else {
			meta.RemoveStatusCondition(&v.Status.Conditions, v1alpha1.ConditionCacheResized)
		}
		if !waits && before.Summary == v.Status.Summary && len(before.Conditions) == len(v.Status.Conditions) {
			return struct{}{}, nil
		}
		return struct{}{}, l.steps.UpdateStatus(ctx, v, "its cache is to have another size")
	})
	return v, waits && err == nil, client.IgnoreNotFound(err)
}

// resizeWaits says what a change of the cache's size waits for; nothing if it waits for nothing.
func resizeWaits(v *v1alpha1.CacheVolume) (reason, message string) {
	if !v.Spec.CacheToResize() || !v.DeletionTimestamp.IsZero() {
		return "", ""
	}
	is, wanted := v1alpha1.HumanBytes(v.Spec.CacheBytes), v1alpha1.HumanBytes(v.Spec.WantedCacheBytes)
	node := v.Status.AttachedNode
	known := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionCacheResized)
	inTheWay := known != nil && (known.Reason == v1alpha1.ReasonResizeNoRoom || known.Reason == v1alpha1.ReasonResizeNoMemory)
	switch {
	case node != "" && inTheWay && known.ObservedGeneration == v.Generation:
		return known.Reason, known.Message
	case node != "" && !v.Status.FlushAttached():
		return v1alpha1.ReasonResizeAttached, fmt.Sprintf("the cache has %s and is to have %s: it gets that when node %s has given "+
			"the volume up and it is attached again", is, wanted, node)
	case !authority.InCeph(v):
		return v1alpha1.ReasonResizeDirty, fmt.Sprintf("the cache has %s and is to have %s. It may have data that is not in Ceph yet, "+
			"so the next attachment takes it over as it is, and the one after that makes the change", is, wanted)
	default:
		return v1alpha1.ReasonResizeDetached, fmt.Sprintf("the cache has %s and is to have %s: it gets that when the volume is attached",
			is, wanted)
	}
}

func setResized(v *v1alpha1.CacheVolume, reason, message string) (changed bool) {
	return meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionCacheResized, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: v.Generation,
	})
}

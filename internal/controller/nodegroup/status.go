package nodegroup

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// stillSeen is how old LastSeen may become while nothing else changes.
const stillSeen = time.Minute

// write patches the group's status if a transition happened, or if figures changed and were not
// written for a while. The patch contains only what this reconciler owns, so it never undoes a
// stale replica that is recorded meanwhile.
func (r *Reconciler) write(ctx context.Context, group *v1alpha1.NodeGroup, seen []sight, needed needs) error {
	now := metav1.NewTime(r.Now())
	wanted := group.DeepCopy()
	wanted.Status.Members = nil
	for _, s := range seen {
		wanted.Status.Members = append(wanted.Status.Members, member(group, s, r.answered(s, now)))
	}
	wanted.Status.Volumes = r.volumes(group.Name)
	conditions(wanted, seen)
	guarded(wanted, needed)
	summarize(&wanted.Status)
	if !r.worthWriting(group, wanted, now.Time) {
		return nil
	}
	if err := r.Client.Status().Patch(ctx, wanted, client.MergeFrom(group)); err != nil {
		return fmt.Errorf("write the status of group %s: %w", group.Name, err)
	}
	r.mu.Lock()
	r.wrote[group.Name] = now.Time
	r.mu.Unlock()
	r.emitEvents(group, wanted, seen)
	return nil
}

// answered returns when the member last answered this process, or nil if it never did. It is kept
// in memory: the record of a host that answers all the time is up to a minute old when the host
// falls silent.
func (r *Reconciler) answered(s sight, now metav1.Time) *metav1.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.host != nil {
		r.seen[s.name] = now
	}
	if last, ok := r.seen[s.name]; ok {
		return &last
	}
	return nil
}

func member(group *v1alpha1.NodeGroup, s sight, answered *metav1.Time) v1alpha1.NodeGroupMember {
	m := v1alpha1.NodeGroupMember{Name: s.name}
	if last := memberOf(group, s.name); last != nil && !s.claimed {
		m = *last
	}
	m.Ready, m.Message = s.problem == "", s.problem
	if h := s.host; h != nil {
		m.Version, m.CacheCapacityBytes, m.CacheAllocatedBytes = h.Version, h.CacheCapacityBytes, h.CacheAllocatedBytes
		m.ConnectedBytes, m.CacheMemoryBytes, m.ConnectableBytes = h.ConnectedBytes, h.CacheMemoryBytes, h.ConnectableBytes
		m.Engines = enginesOf(h)
		if m.CertificateEnd = nil; h.CertificateEnd != nil {
			m.CertificateEnd = &metav1.Time{Time: *h.CertificateEnd}
		}
		m.DirtyBytes, m.Volumes, m.Primaries = h.DirtyBytes, int32(h.Volumes), int32(h.Primaries)
	}
	if !s.claimed && answered != nil {
		m.LastSeen = answered
	}
	return m
}

func (r *Reconciler) volumes(group string) int32 {
	for _, u := range r.Book.Usage() {
		if u.Group == group {
			return int32(u.Volumes)
		}
	}
	return 0
}

func conditions(g *v1alpha1.NodeGroup, seen []sight) {
	var problems []string
	reason := "AllMembersReady"
	for _, s := range seen {
		if s.problem != "" {
			problems, reason = append(problems, s.problem), s.reason
		}
	}
	degraded := metav1.Condition{Type: v1alpha1.GroupDegraded, Status: metav1.ConditionFalse, Reason: reason}
	if len(problems) > 0 {
		degraded.Status, degraded.Message = metav1.ConditionTrue, strings.Join(problems, "; ")
	}
	ready := metav1.Condition{Type: v1alpha1.GroupReady, Status: metav1.ConditionTrue, Reason: "CanPlace"}
	switch fit := len(seen) - len(problems); {
	case !g.DeletionTimestamp.IsZero():
		ready.Status, ready.Reason = metav1.ConditionFalse, "Deleted"
		ready.Message = "it is being deleted: no new volumes are placed here"
	case g.Spec.Cordoned:
		ready.Status, ready.Reason = metav1.ConditionFalse, "Cordoned"
		ready.Message = "cordoned: no new volumes are placed here"
	case fit < 2:
		ready.Status, ready.Reason = metav1.ConditionFalse, "TooFewMembers"
		ready.Message = fmt.Sprintf("%d of %d members are ready, a volume needs two: %s", fit, len(seen), strings.Join(problems, "; "))
	}
	for _, c := range []metav1.Condition{ready, degraded} {
		c.ObservedGeneration = g.Generation
		meta.SetStatusCondition(&g.Status.Conditions, c)
	}
}

func summarize(s *v1alpha1.NodeGroupStatus) {
	var ready int
	var capacity, allocated, dirty int64
	var nodes []string
	for _, m := range s.Members {
		nodes = append(nodes, m.Name)
		if m.Ready {
			ready++
		}
		capacity, allocated, dirty = capacity+m.CacheCapacityBytes, allocated+m.CacheAllocatedBytes, dirty+m.DirtyBytes
	}
	s.Summary = v1alpha1.NodeGroupSummary{
		Ready: fmt.Sprintf("%d/%d", ready, len(s.Members)),
		Cache: v1alpha1.HumanBytes(allocated) + "/" + v1alpha1.HumanBytes(capacity),
		Dirty: v1alpha1.HumanBytes(dirty),
		Nodes: strings.Join(nodes, ","),
	}
}

// worthWriting reports whether something other than figures changed.
func (r *Reconciler) worthWriting(old, wanted *v1alpha1.NodeGroup, now time.Time) bool {
	if !equality.Semantic.DeepEqual(withoutFigures(old.Status), withoutFigures(wanted.Status)) {
		return true
	}
	r.mu.Lock()
	last := r.wrote[old.Name]
	r.mu.Unlock()
	if now.Sub(last) >= stillSeen {
		return true
	}
	return now.Sub(last) >= r.Quiet && !equality.Semantic.DeepEqual(withoutLastSeen(old.Status), withoutLastSeen(wanted.Status))
}

// withoutLastSeen leaves out what is different at each poll although nothing has happened.
func withoutLastSeen(s v1alpha1.NodeGroupStatus) v1alpha1.NodeGroupStatus {
	s = *s.DeepCopy()
	for i := range s.Members {
		s.Members[i].LastSeen, s.Members[i].ConnectableBytes = nil, nil
	}
	return s
}

func withoutFigures(s v1alpha1.NodeGroupStatus) v1alpha1.NodeGroupStatus {
	s = withoutLastSeen(s)
	s.Volumes, s.Summary = 0, v1alpha1.NodeGroupSummary{}
	for i := range s.Members {
		m := &s.Members[i]
		m.CacheAllocatedBytes, m.ConnectedBytes, m.CacheMemoryBytes, m.DirtyBytes, m.Volumes, m.Primaries = 0, 0, 0, 0, 0, 0
	}
	return s
}

// emitEvents emits an Event for every member that became ready or ceased to be, and for the group's
// own readiness.
func (r *Reconciler) emitEvents(old, now *v1alpha1.NodeGroup, seen []sight) {
	for _, s := range seen {
		before := memberOf(old, s.name)
		switch was := before != nil && before.Ready; {
		case was && s.problem != "", before == nil && s.problem != "":
			r.Events.Eventf(now, nil, corev1.EventTypeWarning, s.reason, "Poll", "%s", s.problem)
		case !was && s.problem == "":
			r.Events.Eventf(now, nil, corev1.EventTypeNormal, "MemberReady", "Poll", "node %s is ready", s.name)
		}
	}
	r.emitGuarded(old, now)
	was := meta.IsStatusConditionTrue(old.Status.Conditions, v1alpha1.GroupReady)
	ready := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.GroupReady)
	if is := ready.Status == metav1.ConditionTrue; was != is {
		kind, note := corev1.EventTypeNormal, "volumes can be placed here"
		if !is {
			kind, note = corev1.EventTypeWarning, ready.Message
		}
		r.Events.Eventf(now, nil, kind, ready.Reason, "Poll", "%s", note)
	}
}

// emitGuarded emits an Event when a deletion begins to wait, and when hosts outside the group come to
// have replicas, or have none any more.
func (r *Reconciler) emitGuarded(old, now *v1alpha1.NodeGroup) {
	for _, kind := range []string{v1alpha1.GroupDeletionBlocked, v1alpha1.GroupFormerMembers} {
		was, is := meta.FindStatusCondition(old.Status.Conditions, kind), meta.FindStatusCondition(now.Status.Conditions, kind)
		switch {
		case was == nil && is != nil:
			r.Events.Eventf(now, nil, corev1.EventTypeWarning, kind, "Guard", "%s", is.Message)
		case kind == v1alpha1.GroupFormerMembers && was != nil && is == nil:
			r.Events.Eventf(now, nil, corev1.EventTypeNormal, "FormerMembersFree", "Guard",
				"no host outside the group has a replica on record any more")
		}
	}
}

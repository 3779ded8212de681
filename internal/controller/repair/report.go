package repair

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
)

// quiet is how often progress is written. A change of the step is written at once.
const quiet = 10 * time.Second

// ReasonNone is the condition's reason while there is nothing to repair.
const ReasonNone = "NothingToRepair"

// repairing reports whether the record says that there is something to do, or that it cannot be done.
func repairing(v *v1alpha1.CacheVolume) bool {
	c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRepairing)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Reason == string(Stay))
}

// explains reports whether csi-controller knows better than the record why there is one copy, or does
// not know it any more.
func (w *work) explains() bool {
	c, f := meta.FindStatusCondition(w.volume.Status.Conditions, v1alpha1.ConditionRedundant), w.seen.Finding
	if c == nil || c.Status != metav1.ConditionFalse || f.Whole() || c.Reason == f.Reason {
		return false
	}
	is := func(reason string) bool {
		return reason == v1alpha1.ReasonPeerLost || redundancy.Explains(reason, v1alpha1.ReasonPeerLost)
	}
	return is(c.Reason) && is(f.Reason)
}

// redundant returns the condition Redundant that a volume which no node has is to get, nil if it is as it
// should be, or csi-node's. Once all is in Ceph nothing is wrong, whatever was seen before.
func (w *work) redundant(v *v1alpha1.CacheVolume) *metav1.Condition {
	if v.Status.AttachedNode != "" {
		return nil
	}
	is := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRedundant)
	wanted := metav1.Condition{
		Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTwoCopies, Message: redundancy.TwoCopies,
	}
	one := v.WithoutPod() && !w.seen.Whole()
	if one {
		wanted.Status, wanted.Reason, wanted.Message = metav1.ConditionFalse, w.seen.Reason, w.seen.Message
	}
	if is != nil && is.Status == wanted.Status && is.Reason == wanted.Reason || !one && (is == nil || is.Status != metav1.ConditionFalse) {
		return nil
	}
	return &wanted
}

// report writes the volume's conditions, and emits an Event for each change of the step.
func (r *Repairer) report(ctx context.Context, w *work, progress string) error {
	wanted := w.step.condition(progress)
	is := meta.FindStatusCondition(w.volume.Status.Conditions, wanted.Type)
	changed := is == nil || is.Status != wanted.Status || is.Reason != wanted.Reason
	changed = changed && (is != nil || w.step.Action != Nothing)
	explains := w.explains() || w.redundant(w.volume) != nil
	if !changed && !explains && (is == nil || is.Message == wanted.Message || !r.mayWrite(w.volume.Name)) {
		return nil
	}
	// Read it again: this poll has written the record itself.
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: w.volume.Name}, v); err != nil {
		return client.IgnoreNotFound(err)
	}
	set := (is != nil || changed) && meta.SetStatusCondition(&v.Status.Conditions, wanted)
	if explained := explains && w.explain(v); !set && !explained {
		return nil
	}
	v.Status.Summarize()
	if err := r.Client.Status().Update(ctx, v); err != nil {
		return client.IgnoreNotFound(err)
	}
	r.wrote(v.Name)
	if changed {
		r.tell(v, w.step.Action, wanted.Message)
	}
	return nil
}

// condition is what the record says of the step.
func (s Step) condition(progress string) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.ConditionRepairing, Status: metav1.ConditionTrue, Reason: string(s.Action), Message: s.Reason}
	if progress != "" {
		c.Message += ": " + progress
	}
	switch s.Action { //nolint:exhaustive // the rest are at work, or wait
	case Nothing:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonNone, ""
	case Stay:
		c.Status = metav1.ConditionFalse
	}
	return c
}

// explain puts on record why there is one copy, unless the record has changed so that this is not known.
func (w *work) explain(v *v1alpha1.CacheVolume) bool {
	if c := w.redundant(v); c != nil {
		return meta.SetStatusCondition(&v.Status.Conditions, *c)
	}
	if now := (&work{volume: v, seen: w.seen}); !now.explains() {
		return false
	}
	return meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: w.seen.Reason, Message: w.seen.Message,
	})
}

// tell emits the Event of a step.
func (r *Repairer) tell(v *v1alpha1.CacheVolume, action Action, note string) {
	kind := corev1.EventTypeNormal
	switch action {
	case Nothing:
		note = "the repair is over"
		r.forget(v.Name)
	case Begin, Wait, Flush, Stay:
		kind = corev1.EventTypeWarning
	case Drain, Substitute, Copy, Finish, End:
	}
	r.Events.Eventf(v, nil, kind, "Repair"+reasonOf(action), "Repair", "%s", note)
}

func reasonOf(a Action) string {
	if a == Nothing {
		return "Over"
	}
	return string(a)
}

func (r *Repairer) mayWrite(volume string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.Now().Sub(r.said[volume]) >= quiet
}

func (r *Repairer) wrote(volume string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said[volume] = r.Now()
}

func (r *Repairer) forget(volume string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.said, volume)
	delete(r.unlinked, volume)
	delete(r.unable, volume)
	delete(r.flushed, volume)
	delete(r.paces, volume)
}

// reportGroups keeps the condition of the groups up to date.
func (r *Repairer) reportGroups(ctx context.Context, groups []v1alpha1.NodeGroup, works []*work, sights map[string]*sight) {
	for i := range groups {
		g := &groups[i]
		wanted := groupCondition(g, works, sights[g.Name])
		if is := meta.FindStatusCondition(g.Status.Conditions, wanted.Type); is != nil && is.Status == wanted.Status &&
			is.Reason == wanted.Reason && is.Message == wanted.Message {
			continue
		}
		before := g.DeepCopy()
		wanted.ObservedGeneration = g.Generation
		meta.SetStatusCondition(&g.Status.Conditions, wanted)
		err := r.Client.Status().Patch(ctx, g, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		if client.IgnoreNotFound(err) != nil && !passing(err) {
			r.Log.WarnContext(ctx, "cannot write the condition of a group", "group", g.Name, "error", err)
		}
	}
}

func groupCondition(g *v1alpha1.NodeGroup, works []*work, of *sight) metav1.Condition {
	doing := map[Action]int{}
	total := 0
	for _, w := range works {
		if w.volume.Spec.Group == g.Name && !slices.Contains([]Action{Nothing, End, Stay}, w.step.Action) {
			doing[w.step.Action]++
			total++
		}
	}
	if total == 0 {
		return metav1.Condition{
			Type: v1alpha1.GroupRedundant, Status: metav1.ConditionTrue, Reason: ReasonNone,
			Message: "no volume waits for a second replica",
		}
	}
	var parts []string
	for _, node := range g.Spec.Nodes {
		if a, away := of.away[node]; away && !a.lastSeen.IsZero() {
			parts = append(parts, redundancy.NotSeen(node, a.lastSeen))
		}
	}
	var counts []string
	for _, a := range []Action{Begin, Drain, Substitute, Copy, Finish, Flush, Wait} {
		if doing[a] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", doing[a], strings.ToLower(string(a))))
		}
	}
	if of.pause != "" {
		parts = append(parts, of.pause)
	}
	parts = append(parts, fmt.Sprintf("volumes in repair: %d (%s)", total, strings.Join(counts, ", ")))
	slices.Sort(parts[:len(parts)-1])
	return metav1.Condition{
		Type: v1alpha1.GroupRedundant, Status: metav1.ConditionFalse, Reason: "VolumesInRepair", Message: strings.Join(parts, "; "),
	}
}

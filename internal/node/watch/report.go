package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/health"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/redundancy"
)

// report writes Events for problems that began or are over, and updates the CacheVolume's status if
// it differs. status is nil if escached does not answer.
func (w *Watch) report(ctx context.Context, v *volume, findings []health.Finding, status *escache.VolumeStatus, now time.Time) {
	if v.object == nil {
		return
	}
	w.mu.Lock()
	if v.newer != nil {
		v.object, v.newer = v.newer, nil
	}
	w.mu.Unlock()
	begun, over := v.change(findings, now)
	for _, p := range begun {
		if p.suppressed = !v.mayEmit(p.finding.Reason, now); !p.suppressed {
			w.emit(ctx, v, kube.Event{Warning: true, Reason: string(p.finding.Reason), Message: p.finding.Message, Time: now})
		}
	}
	if reported := slices.DeleteFunc(over, func(p *problem) bool { return p.suppressed }); len(reported) > 0 {
		w.emit(ctx, v, kube.Event{Reason: "Recovered", Message: recovery(reported, now), Time: now})
	}
	w.writeStatus(ctx, v, status, now)
}

// recovery lists the problems that are over, the oldest first, and how long each lasted. One Event
// has them all, since problems that began together mostly end together.
func recovery(over []*problem, now time.Time) string {
	parts := make([]string, 0, len(over))
	for _, p := range over {
		parts = append(parts, fmt.Sprintf("%s is over after %s", p.finding.Reason, now.Sub(p.since).Round(time.Second)))
	}
	return strings.Join(parts, ", ")
}

func (w *Watch) emit(ctx context.Context, v *volume, e kube.Event) {
	w.Logger.InfoContext(ctx, "the state of a volume has changed", "volume", v.object.Name, "reason", e.Reason, "message", e.Message)
	if err := w.Kube.Emit(ctx, w.Node, v.object, e); err != nil {
		w.Logger.WarnContext(ctx, "cannot write an Event", "volume", v.object.Name, "reason", e.Reason, "error", err)
	}
}

const maxTries = 4

// writeStatus writes the CacheVolume's status if it is not what it should be. It compares with the
// object as last seen, so it reads and writes nothing while nothing changes.
func (w *Watch) writeStatus(ctx context.Context, v *volume, status *escache.VolumeStatus, now time.Time) {
	numbers := w.numbers(v, status, now)
	for range maxTries {
		wanted := w.wanted(v, status, numbers)
		if wanted == nil {
			return
		}
		changed, err := w.Kube.PatchStatus(ctx, v.object, wanted)
		if err == nil {
			v.object = changed
			v.wroteNumbers(numbers, now)
			return
		}
		if !errors.Is(err, kube.ErrConflict) {
			w.Logger.WarnContext(ctx, "cannot write a volume's status; the next poll tries again", "volume", v.object.Name, "error", err)
			return
		}
		object, err := w.Kube.Volume(ctx, v.object.Name)
		if err != nil {
			return
		}
		v.object = object
	}
}

// wanted returns the fields of the status that must change, or nil. Only the attached node writes a
// volume's status.
func (w *Watch) wanted(v *volume, status *escache.VolumeStatus, numbers map[string]any) map[string]any {
	if v.object.Status.AttachedNode != w.Node {
		return nil
	}
	fields := map[string]any{}
	conditions := slices.Clone(v.object.Status.Conditions)
	differs := false
	for _, wanted := range v.conditions() {
		if is := meta.FindStatusCondition(conditions, wanted.Type); is != nil && is.Status == wanted.Status &&
			(is.Reason == wanted.Reason || redundancy.Explains(is.Reason, wanted.Reason)) {
			continue
		}
		meta.SetStatusCondition(&conditions, wanted)
		differs = true
	}
	if differs {
		fields["conditions"] = conditions
	}
	if status != nil && status.ClientAddress != "" && status.ClientAddress != v.object.Status.ClientAddress &&
		status.Epoch == v.object.Status.Epoch && !authority.IsFenced(v.object, status.ClientAddress) {
		fields["clientAddress"] = status.ClientAddress
	}
	maps.Copy(fields, numbers)
	if len(fields) == 0 {
		return nil
	}
	return fields
}

// conditions returns the watched conditions, as the open problems make them.
func (v *volume) conditions() []metav1.Condition {
	good := map[string]struct{ reason, message string }{
		v1alpha1.ConditionRedundant: {v1alpha1.ReasonTwoCopies, "every acknowledged write is on two hosts or in Ceph"},
		v1alpha1.ConditionSynced:    {"InSync", "no replica is catching up"},
		v1alpha1.ConditionHealthy:   {"NoError", "the cache reports no error"},
	}
	all := make([]metav1.Condition, 0, len(good))
	for _, kind := range watched() {
		c := metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: good[kind].reason, Message: good[kind].message}
		problems := v.open(kind)
		slices.SortFunc(problems, func(a, b health.Finding) int {
			return cmp.Or(cmp.Compare(b.Severity, a.Severity), strings.Compare(string(a.Reason), string(b.Reason)))
		})
		if len(problems) > 0 {
			c.Status, c.Reason = metav1.ConditionFalse, string(problems[0].Reason)
			messages := make([]string, 0, len(problems))
			for _, f := range problems {
				messages = append(messages, f.Message)
			}
			c.Message = strings.Join(messages, "; ")
		}
		all = append(all, c)
	}
	return all
}

// clearProblems makes the conditions good again for a volume that is no longer connected here: it
// was flushed and stopped. If another node has it now, that node writes its conditions. If the volume was
// taken from this node by force, it may have been left dirty on one copy, and csi-controller says so.
func (w *Watch) clearProblems(ctx context.Context, v *volume) {
	if v.object == nil || len(v.problems) == 0 {
		return
	}
	clear(v.problems)
	object, err := w.Kube.Volume(ctx, v.object.Name)
	if err != nil || (object.Status.AttachedNode != w.Node && object.Status.AttachedNode != "") {
		return
	}
	v.object = object
	conditions := slices.Clone(object.Status.Conditions)
	oneCopy := object.Status.LeftDirty() && redundancy.Lost(object) != ""
	for _, c := range v.conditions() {
		if c.Type != v1alpha1.ConditionRedundant || !oneCopy {
			meta.SetStatusCondition(&conditions, c)
		}
	}
	if _, err := w.Kube.PatchStatus(ctx, object, map[string]any{"conditions": conditions, "resync": nil}); err != nil {
		w.Logger.WarnContext(ctx, "cannot write the status of a volume that is not connected any more", "volume", object.Name, "error", err)
	}
}

package cacheflush

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func (r *Reconciler) remember(uid types.UID) *memory {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.memory[uid]
	if m == nil {
		m = &memory{turns: map[string]turn{}}
		r.memory[uid] = m
	}
	return m
}

func (r *Reconciler) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memory, uid)
}

// measure adds up the progress and computes the rate.
func (m *memory) measure(s *v1alpha1.CacheFlushStatus, now time.Time) {
	s.TotalBytes, s.LeftBytes = 0, 0
	for _, v := range s.Volumes {
		s.TotalBytes += v.TotalBytes
		s.LeftBytes += v.LeftBytes
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	rate, remaining := m.pace.Look(s.LeftBytes, now)
	s.BytesPerSecond, s.RemainingSeconds = rate, int64(remaining/time.Second)
}

// judge derives the state of the CacheFlush from its volumes, and gives up volumes whose time is
// over. Those of a Trim are given up before.
func (r *Reconciler) judge(f *v1alpha1.CacheFlush) {
	s := &f.Status
	now := metav1.NewTime(r.Now())
	if f.Spec.Mode == v1alpha1.FlushModeFlush && r.timeUp(f) {
		for i := range s.Volumes {
			if v := &s.Volumes[i]; !ended(v.Phase) {
				giveUp(v, f.Spec)
			}
		}
	}
	clean, failed, open, words := tally(s.Volumes)
	drains := f.Spec.Mode == v1alpha1.FlushModeDrain
	trims := f.Spec.Mode == v1alpha1.FlushModeTrim
	count := fmt.Sprintf("%d of %d volumes are clean", clean, len(s.Volumes))
	if trims {
		count = fmt.Sprintf("%d of %d volumes are trimmed", clean, len(s.Volumes))
	}
	switch {
	case open > 0:
		s.Phase, s.CompletionTime = v1alpha1.FlushRunning, nil
		r.condition(f, metav1.ConditionFalse, "InProgress", text(append([]string{count}, words...)))
		return
	case failed > 0 && trims:
		s.Phase, s.CompletionTime = v1alpha1.FlushFailed, &now
		r.condition(f, metav1.ConditionFalse, "NotTrimmed", text(append([]string{count}, words...)))
	case failed > 0 && !drains:
		s.Phase, s.CompletionTime = v1alpha1.FlushFailed, &now
		r.condition(f, metav1.ConditionFalse, "VolumesFailed", text(append([]string{count}, words...)))
	case failed > 0:
		s.Phase = v1alpha1.FlushDrained
		r.condition(f, metav1.ConditionFalse, "VolumesFailed", text(append([]string{count}, words...)))
	case drains:
		s.Phase = v1alpha1.FlushDrained
		r.condition(f, metav1.ConditionTrue, "Drained", text(append([]string{count + ", and those attached write through"}, words...)))
	case trims:
		s.Phase, s.CompletionTime = v1alpha1.FlushComplete, &now
		r.condition(f, metav1.ConditionTrue, "Trimmed", count)
	default:
		s.Phase, s.CompletionTime = v1alpha1.FlushComplete, &now
		r.condition(f, metav1.ConditionTrue, "Clean", count)
	}
	s.BytesPerSecond, s.RemainingSeconds = 0, 0
	if drains && s.CompletionTime == nil {
		s.CompletionTime = &now
	}
}

// tally counts volumes by how they ended, or that they did not, and collects what is to be said of them.
func tally(volumes []v1alpha1.FlushedVolume) (clean, failed, open int, words []string) {
	for _, v := range volumes {
		switch v.Phase { //nolint:exhaustive // the rest are open
		case v1alpha1.FlushFailed:
			failed++
		case v1alpha1.FlushComplete, v1alpha1.FlushDrained:
			clean++
		default:
			open++
		}
		if v.Message != "" && v.Phase != v1alpha1.FlushComplete {
			words = append(words, v.Name+": "+v.Message)
		}
	}
	return clean, failed, open, words
}

// timeUp reports whether a CacheFlush has tried for long enough.
func (r *Reconciler) timeUp(f *v1alpha1.CacheFlush) bool {
	return r.Now().Sub(f.Status.StartTime.Time) >= time.Duration(f.Spec.TimeoutSeconds)*time.Second
}

func giveUp(v *v1alpha1.FlushedVolume, spec v1alpha1.CacheFlushSpec) {
	seconds := spec.TimeoutSeconds
	v.Phase = v1alpha1.FlushFailed
	switch {
	case v.Message != "":
		v.Message = fmt.Sprintf("given up after %d s: %s", seconds, v.Message)
		return
	case spec.Mode == v1alpha1.FlushModeTrim:
		v.Message = fmt.Sprintf("given up after %d s with %s not looked through; a longer timeout helps",
			seconds, v1alpha1.HumanBytes(v.LeftBytes))
		return
	}
	v.Message = fmt.Sprintf("given up after %d s with %s dirty: pods write as fast as Ceph takes it, or Ceph takes nothing; "+
		"mode Drain turns new writes through to Ceph, so that it ends", seconds, v1alpha1.HumanBytes(v.LeftBytes))
}

// textLimit is the longest message of a condition that an API server accepts, with room to spare.
const textLimit = 8000

func text(sentences []string) string {
	out := strings.Join(sentences, "; ")
	if len(out) > textLimit {
		out = out[:textLimit] + "…"
	}
	return out
}

func (r *Reconciler) condition(f *v1alpha1.CacheFlush, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&f.Status.Conditions, metav1.Condition{
		Type: v1alpha1.FlushConditionComplete, Status: status, Reason: reason, Message: message, ObservedGeneration: f.Generation,
		LastTransitionTime: metav1.NewTime(r.Now()),
	})
}

const percent = 100

func summarize(s *v1alpha1.CacheFlushStatus) {
	clean := 0
	for _, v := range s.Volumes {
		if v.Phase == v1alpha1.FlushComplete || v.Phase == v1alpha1.FlushDrained {
			clean++
		}
	}
	switch {
	case s.Phase == v1alpha1.FlushComplete, s.Phase == v1alpha1.FlushDrained && clean == len(s.Volumes):
		s.Percent = percent
	case s.TotalBytes > 0:
		s.Percent = int32(min(max(percent*float64(s.TotalBytes-s.LeftBytes)/float64(s.TotalBytes), 0), percent-1))
	default:
		s.Percent = 0
	}
	s.Summary = v1alpha1.CacheFlushSummary{
		Left: v1alpha1.HumanBytes(s.LeftBytes), Volumes: fmt.Sprintf("%d/%d", clean, len(s.Volumes)),
	}
	if s.BytesPerSecond > 0 {
		s.Summary.Rate = v1alpha1.HumanBytes(s.BytesPerSecond) + "/s"
		s.Summary.Remaining = (time.Duration(s.RemainingSeconds) * time.Second).String()
	}
}

func same(a, b *v1alpha1.CacheFlush) bool { return equality.Semantic.DeepEqual(a.Status, b.Status) }

// emitEvents emits an Event for every volume that failed, and one for the end.
func (r *Reconciler) emitEvents(before, f *v1alpha1.CacheFlush) {
	phases := map[string]v1alpha1.FlushPhase{}
	for _, v := range before.Status.Volumes {
		phases[v.Name] = v.Phase
	}
	for _, v := range f.Status.Volumes {
		if v.Phase == v1alpha1.FlushFailed && phases[v.Name] != v.Phase {
			if f.Spec.Mode == v1alpha1.FlushModeTrim {
				r.Events.Eventf(f, nil, corev1.EventTypeWarning, "VolumeNotTrimmed", "Trim", "volume %s: %s", v.Name, v.Message)
				continue
			}
			r.Events.Eventf(f, nil, corev1.EventTypeWarning, "VolumeNotFlushed", "Flush", "volume %s: %s", v.Name, v.Message)
		}
	}
	if before.Status.Phase == f.Status.Phase {
		return
	}
	c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.FlushConditionComplete)
	if c == nil || f.Status.Phase == v1alpha1.FlushRunning {
		return
	}
	kind := corev1.EventTypeNormal
	if c.Status != metav1.ConditionTrue {
		kind = corev1.EventTypeWarning
	}
	note := c.Message
	if len(note) > noteLimit {
		note = note[:noteLimit] + "…"
	}
	r.Events.Eventf(f, nil, kind, c.Reason, "Flush", "%s", note)
}

// noteLimit is less than the length of an Event's note that Kubernetes accepts.
const noteLimit = 900

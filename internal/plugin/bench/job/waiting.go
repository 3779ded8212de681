package job

import (
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// Seen is what Kubernetes has of a Job.
type Seen struct {
	Job    *batchv1.Job
	Pod    *corev1.Pod // nil: there is none
	Claims []corev1.PersistentVolumeClaim
	Events []corev1.Event // of any of them; none if they may not be read
}

// Waits says why the pod does not run yet.
func (s Seen) Waits() string {
	if s.Pod == nil {
		return reason("the Job has no pod yet", s.newest("Job", s.Job.Name))
	}
	for _, c := range s.Claims {
		if c.Status.Phase != corev1.ClaimBound {
			return s.unbound(c)
		}
	}
	if c := s.container(); c != nil && c.State.Waiting != nil && c.State.Waiting.Message != "" {
		return fmt.Sprintf("the container does not start: %s: %s", c.State.Waiting.Reason, c.State.Waiting.Message)
	}
	what := "pod " + s.Pod.Name + " is not scheduled"
	if s.Pod.Spec.NodeName != "" {
		what = "pod " + s.Pod.Name + " starts on node " + s.Pod.Spec.NodeName
	}
	if e := s.newest("Pod", s.Pod.Name); e != nil && e.Type == corev1.EventTypeWarning {
		return reason(what, e)
	}
	if why := s.unscheduled(); why != "" {
		what += ": " + why
	}
	return what
}

// unbound says why a claim is not bound. Some claims wait for the pod to be scheduled, and what that waits
// for is the reason then.
func (s Seen) unbound(c corev1.PersistentVolumeClaim) string {
	class := ""
	if c.Spec.StorageClassName != nil {
		class = *c.Spec.StorageClassName
	}
	event := s.newest("PersistentVolumeClaim", c.Name)
	text := reason(fmt.Sprintf("claim %s of StorageClass %s is not bound", c.Name, class), event)
	if why := s.unscheduled(); why != "" && (event == nil || event.Type != corev1.EventTypeWarning) {
		text += ". The pod is not scheduled: " + why
	}
	return text
}

// unscheduled is the scheduler's reason; empty if there is none.
func (s Seen) unscheduled() string {
	for _, c := range s.Pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

func reason(what string, e *corev1.Event) string {
	if e == nil {
		return what
	}
	return fmt.Sprintf("%s: %s: %s", what, e.Reason, e.Message)
}

// newest is the last event of an object; nil if there is none.
func (s Seen) newest(kind, name string) *corev1.Event {
	var newest *corev1.Event
	for i := range s.Events {
		e := &s.Events[i]
		if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && (newest == nil || !at(e).Before(at(newest))) {
			newest = e
		}
	}
	return newest
}

// at is when an event was seen last, in either form of events.
func at(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	default:
		return e.EventTime.Time
	}
}

func (s Seen) container() *corev1.ContainerStatus {
	for i := range s.Pod.Status.ContainerStatuses {
		if c := &s.Pod.Status.ContainerStatuses[i]; c.Name == Container {
			return c
		}
	}
	return nil
}

// Started reports whether the container runs, or has run.
func (s Seen) Started() bool {
	if s.Pod == nil {
		return false
	}
	c := s.container()
	return c != nil && (c.State.Running != nil || c.State.Terminated != nil)
}

// Ended reports whether the container has ended. The failure is empty if it has ended well.
func (s Seen) Ended() (ended bool, failure string) {
	if s.Pod != nil {
		if c := s.container(); c != nil && c.State.Terminated != nil {
			end := c.State.Terminated
			if end.ExitCode == 0 {
				return true, ""
			}
			return true, fmt.Sprintf("the container has ended with exit code %d: %s %s", end.ExitCode, end.Reason, end.Message)
		}
		if s.Pod.Status.Phase == corev1.PodFailed {
			return true, fmt.Sprintf("the pod has failed: %s %s", s.Pod.Status.Reason, s.Pod.Status.Message)
		}
	}
	for _, c := range s.Job.Status.Conditions {
		if c.Type == batchv1.JobFailed && c.Status == corev1.ConditionTrue {
			return true, fmt.Sprintf("the Job has failed: %s: %s", c.Reason, c.Message)
		}
	}
	return false, ""
}

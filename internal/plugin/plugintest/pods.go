package plugintest

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pod is a pod in namespace user, whose containers run if it is ready.
func Pod(name string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: name}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: status}}
	return p
}

// Event is a warning about a pod in namespace user.
func Event(pod, reason, note string, at time.Time) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: strings.ToLower(pod + "." + reason)}, Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "user", Name: pod}, Reason: reason, Note: note,
		EventTime: metav1.NewMicroTime(at),
	}
}

// Refused is what Kubernetes says where a pod cannot have the volume pvc-1.
const Refused = `MountVolume.MountDevice failed for volume "again" : rpc error: code = FailedPrecondition desc = refused: foreign data`

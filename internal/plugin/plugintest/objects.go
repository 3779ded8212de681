package plugintest

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Group is a group with the hosts n1, n2 and n3, or those that are given.
func Group(name string, nodes ...string) *v1alpha1.NodeGroup {
	if len(nodes) == 0 {
		nodes = []string{"n1", "n2", "n3"}
	}
	return &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeGroupSpec{Nodes: nodes}}
}

// Class is a StorageClass of the driver.
func Class() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "escache"}, Provisioner: v1alpha1.DriverName,
		Parameters: map[string]string{"clusterID": "fsid", "pool": "fast"},
	}
}

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

// User is a pod that uses the claim user/static.
func User(pod string, phase corev1.PodPhase) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: pod}, Status: corev1.PodStatus{Phase: phase}}
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "static"},
	}}}
	return p
}

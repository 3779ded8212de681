package job

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/internal/benchmark"
)

func options() Options {
	return Options{
		Name: "escache-bench-x", Namespace: "shop", Image: "i", Classes: []string{"a", "b"}, Start: 10 * time.Minute,
		Plan: benchmark.Plan{Bytes: 1 << 30, Rounds: 5, Turn: 4 * time.Second},
	}
}

// The Pod Security Standard restricted, https://kubernetes.io/docs/concepts/security/pod-security-standards/.
func TestThePodIsRestricted(t *testing.T) {
	pod := options().Job().Spec.Template.Spec
	c := pod.Containers[0].SecurityContext
	switch {
	case pod.HostNetwork || pod.HostPID || pod.HostIPC,
		!*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser == 0,
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault,
		*c.AllowPrivilegeEscalation, len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" || len(c.Capabilities.Add) > 0,
		*pod.AutomountServiceAccountToken:
		t.Errorf("%+v %+v", pod, c)
	}
	for _, v := range pod.Volumes {
		if v.Ephemeral == nil {
			t.Errorf("volume %s is not removed with the pod", v.Name)
		}
	}
}

func TestTheJobOutlivesItsBenchmarkAndNothingElse(t *testing.T) {
	o := options()
	spec := o.Job().Spec
	least := o.Start + o.Plan.MostTime(2)
	if got := time.Duration(*spec.ActiveDeadlineSeconds) * time.Second; got < least || got > least+5*time.Minute {
		t.Errorf("it ends after %s, and the benchmark after %s", got, least)
	}
	if *spec.BackoffLimit != 0 || *spec.TTLSecondsAfterFinished <= 0 || spec.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		t.Errorf("%+v", spec)
	}
}

func TestTheSameClassTwiceHasTwoNames(t *testing.T) {
	o := options()
	o.Classes[1] = "a"
	if got := strings.Join(o.Names(), " "); got != "a a-again" {
		t.Error(got)
	}
}

func event(kind, name, level, why, message string, minute int) corev1.Event {
	return corev1.Event{
		InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Type: level, Reason: why, Message: message,
		LastTimestamp: metav1.NewTime(time.Date(2027, 1, 1, 0, minute, 0, 0, time.UTC)),
	}
}

func TestWhatAPodWaitsFor(t *testing.T) {
	unscheduled := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
	}
	on := func(p *corev1.Pod) { p.Spec.NodeName = "n1" }
	pulls := func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Container, State: corev1.ContainerState{
			Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"},
		}}}
	}
	claim := func(phase corev1.PersistentVolumeClaimPhase) []corev1.PersistentVolumeClaim {
		c := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "p-volume-0"}}
		c.Spec.StorageClassName, c.Status.Phase = new("escache"), phase
		return []corev1.PersistentVolumeClaim{c}
	}
	for name, tc := range map[string]struct {
		pod    func(*corev1.Pod) // nil: there is none
		claims []corev1.PersistentVolumeClaim
		events []corev1.Event
		want   string
	}{
		"no pod": {want: "the Job has no pod yet"},
		"pods are refused": {
			events: []corev1.Event{event("Job", "j", "Warning", "FailedCreate", "exceeded quota", 1), event("Job", "other", "Warning", "X", "x", 2)},
			want:   "the Job has no pod yet: FailedCreate: exceeded quota",
		},
		"a volume is not made": {
			pod: unscheduled, claims: claim(corev1.ClaimPending), events: []corev1.Event{
				event("PersistentVolumeClaim", "p-volume-0", "Warning", "ProvisioningFailed", "no room", 2),
				event("PersistentVolumeClaim", "p-volume-0", "Normal", "Provisioning", "it begins", 1),
			},
			want: "claim p-volume-0 of StorageClass escache is not bound: ProvisioningFailed: no room",
		},
		"claim and pod wait": {
			pod: unscheduled, claims: claim(corev1.ClaimPending), events: []corev1.Event{
				event("PersistentVolumeClaim", "p-volume-0", "Normal", "WaitForPodScheduled", "waiting for the pod", 1),
			},
			want: "claim p-volume-0 of StorageClass escache is not bound: WaitForPodScheduled: waiting for the pod. " +
				"The pod is not scheduled: 0/3 nodes are available",
		},
		"no node": {pod: unscheduled, claims: claim(corev1.ClaimBound), want: "pod p is not scheduled: 0/3 nodes are available"},
		"no attachment": {
			pod: on, claims: claim(corev1.ClaimBound), events: []corev1.Event{
				event("Pod", "p", "Warning", "FailedAttachVolume", "still attached", 2), event("Pod", "p", "Normal", "Scheduled", "to n1", 1),
			},
			want: "pod p starts on node n1: FailedAttachVolume: still attached",
		},
		"starts":   {pod: on, claims: claim(corev1.ClaimBound), want: "pod p starts on node n1"},
		"no image": {pod: pulls, claims: claim(corev1.ClaimBound), want: "the container does not start: ImagePullBackOff: no such image"},
	} {
		t.Run(name, func(t *testing.T) {
			seen := Seen{Job: &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "j"}}, Claims: tc.claims, Events: tc.events}
			if tc.pod != nil {
				seen.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
				tc.pod(seen.Pod)
			}
			if got := seen.Waits(); got != tc.want || seen.Started() {
				t.Errorf("%q\nwant %q", got, tc.want)
			}
		})
	}
}

func TestHowAPodEnds(t *testing.T) {
	terminated := func(code int32) Seen {
		s := Seen{Job: &batchv1.Job{}, Pod: &corev1.Pod{}}
		s.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: Container, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "OOMKilled"},
		}}}
		return s
	}
	evicted := Seen{Job: &batchv1.Job{}, Pod: &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}}}
	late := Seen{Job: &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "DeadlineExceeded"},
	}}}}
	for _, tc := range []struct {
		seen  Seen
		ended bool
		says  string
	}{
		{terminated(0), true, ""},
		{terminated(137), true, "exit code 137: OOMKilled"},
		{evicted, true, "Evicted"},
		{late, true, "DeadlineExceeded"},
		{Seen{Job: &batchv1.Job{}, Pod: &corev1.Pod{}}, false, ""},
	} {
		ended, failure := tc.seen.Ended()
		if ended != tc.ended || !strings.Contains(failure, tc.says) || (failure == "") != (tc.says == "") {
			t.Errorf("%v %q, want %v %q", ended, failure, tc.ended, tc.says)
		}
	}
}

package plugin

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// cluster holds the volume pvc-1, which was made for user/shared. Its first PersistentVolume is
// gone; the one of today, "again", belongs to the claim user/static.
func cluster(t *testing.T, more ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pvc-1", Annotations: map[string]string{v1alpha1.AnnotationClaim: "user/shared"},
	}}
	v.Status.Phase = v1alpha1.VolumeReady
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "again"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "pvc-1"}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "user", Name: "static"}
	pv.Status.Phase = corev1.VolumeBound
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(append(more, v, pv)...).
		WithIndex(&eventsv1.Event{}, "reason", func(o client.Object) []string { return []string{o.(*eventsv1.Event).Reason} }).Build()
}

func pod(name string, ready bool) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: name}}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: status}}
	return p
}

func event(pod, reason, note string, at time.Time) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: strings.ToLower(pod + "." + reason)}, Type: corev1.EventTypeWarning,
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "user", Name: pod}, Reason: reason, Note: note,
		EventTime: metav1.NewMicroTime(at),
	}
}

const refused = `MountVolume.MountDevice failed for volume "again" : rpc error: code = FailedPrecondition desc = refused: foreign data`

func TestStatusTellsOfPodsThatCannotHaveTheirVolume(t *testing.T) {
	recent := noon.Add(-time.Minute)
	for name, c := range map[string]struct {
		objects []client.Object
		told    bool
	}{
		"a pod waits":              {[]client.Object{pod("p", false), event("p", "FailedMount", refused, recent)}, true},
		"it has its volume now":    {[]client.Object{pod("p", true), event("p", "FailedMount", refused, recent)}, false},
		"it is gone":               {[]client.Object{event("p", "FailedMount", refused, recent)}, false},
		"the failure is long ago":  {[]client.Object{pod("p", false), event("p", "FailedMount", refused, noon.Add(-time.Hour))}, false},
		"another driver's volume":  {[]client.Object{pod("p", false), event("p", "FailedMount", `failed for volume "other" : x`, recent)}, false},
		"a device cannot be there": {[]client.Object{pod("p", false), event("p", "FailedMapVolume", refused, recent)}, true},
		"attached elsewhere":       {[]client.Object{pod("p", false), event("p", "FailedAttachVolume", refused, recent)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := readState(t.Context(), cluster(t, c.objects...), "", noon)
			if err != nil {
				t.Fatal(err)
			}
			out := shown(t, s, statusFlags{})
			told := strings.Contains(out, "volume pvc-1: pod user/p waits for it: "+refused)
			if told != c.told || told == strings.Contains(out, "Nothing is wrong") {
				t.Errorf("says:\n%s", out)
			}
		})
	}
}

func TestExplainShowsWhyPodsWait(t *testing.T) {
	var out bytes.Buffer
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &out}
	c := &cli{IOStreams: streams, config: genericclioptions.NewConfigFlags(true), now: func() time.Time { return noon }}
	api := cluster(t, pod("p", false), event("p", "FailedMount", refused, noon.Add(-time.Minute)))
	v, err := readVolume(t.Context(), api, "pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	c.printVolume(t.Context(), api, v)
	_, after, _ := strings.Cut(out.String(), "Events:")
	events, next, _ := strings.Cut(after, "Next step:")
	if !strings.Contains(events, "FailedMount: "+refused) {
		t.Errorf("events: %s", events)
	}
	if strings.HasPrefix(next, " nothing") || !strings.Contains(next, "pod user/p waits for it") {
		t.Errorf("next step:%s", next)
	}
	if !strings.Contains(out.String(), "pvc-1, of claim user/static, created for claim user/shared") {
		t.Errorf("claims: %s", out.String())
	}
}

func TestStatusShowsTheClaimOfToday(t *testing.T) {
	api := cluster(t)
	show := func() string {
		s, err := readState(t.Context(), api, "", noon)
		if err != nil {
			t.Fatal(err)
		}
		return shown(t, s, statusFlags{})
	}
	if out := show(); !strings.Contains(out, "user/static") || strings.Contains(out, "user/shared") {
		t.Errorf("bound again:\n%s", out)
	}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "again"}}
	if err := api.Delete(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	if out := show(); strings.Contains(out, "user/") {
		t.Errorf("nobody's:\n%s", out)
	}
}

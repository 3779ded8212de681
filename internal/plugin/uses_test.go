package plugin

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
)

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
	recent := plugintest.Noon.Add(-time.Minute)
	for name, c := range map[string]struct {
		objects []client.Object
		told    bool
	}{
		"a pod waits":              {[]client.Object{pod("p", false), event("p", "FailedMount", refused, recent)}, true},
		"it has its volume now":    {[]client.Object{pod("p", true), event("p", "FailedMount", refused, recent)}, false},
		"it is gone":               {[]client.Object{event("p", "FailedMount", refused, recent)}, false},
		"the failure is long ago":  {[]client.Object{pod("p", false), event("p", "FailedMount", refused, plugintest.Noon.Add(-time.Hour))}, false},
		"another driver's volume":  {[]client.Object{pod("p", false), event("p", "FailedMount", `failed for volume "other" : x`, recent)}, false},
		"a device cannot be there": {[]client.Object{pod("p", false), event("p", "FailedMapVolume", refused, recent)}, true},
		"attached elsewhere":       {[]client.Object{pod("p", false), event("p", "FailedAttachVolume", refused, recent)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := state.Read(t.Context(), plugintest.Cluster(t, c.objects...), "", plugintest.Noon)
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
	c, out := plugintest.Output()
	api := plugintest.Cluster(t, pod("p", false), event("p", "FailedMount", refused, plugintest.Noon.Add(-time.Minute)))
	v, err := claims.ReadVolume(t.Context(), api, "pvc-1")
	if err != nil {
		t.Fatal(err)
	}
	printVolume(t.Context(), c, api, v)
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
	api := plugintest.Cluster(t)
	show := func() string {
		s, err := state.Read(t.Context(), api, "", plugintest.Noon)
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

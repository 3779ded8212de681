package status

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
)

func TestStatusTellsOfPodsThatCannotHaveTheirVolume(t *testing.T) {
	pod, event, recent := plugintest.Pod, plugintest.Event, plugintest.Noon.Add(-time.Minute)
	const refused = plugintest.Refused
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
			out := shown(t, s, options{})
			told := strings.Contains(out, "volume pvc-1: pod user/p waits for it: "+refused)
			if told != c.told || told == strings.Contains(out, "Nothing is wrong") {
				t.Errorf("says:\n%s", out)
			}
		})
	}
}

func TestStatusShowsTheClaimOfToday(t *testing.T) {
	api := plugintest.Cluster(t)
	show := func() string {
		s, err := state.Read(t.Context(), api, "", plugintest.Noon)
		if err != nil {
			t.Fatal(err)
		}
		return shown(t, s, options{})
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

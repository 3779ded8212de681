package status

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/choice"
)

func TestStatusShowsReadOnlyVolumesThatAreChosen(t *testing.T) {
	for name, tc := range map[string]struct {
		filter choice.Filter
		shown  bool
	}{
		"all":               {choice.Filter{}, true},
		"a node with it":    {choice.Filter{Nodes: []string{"n1"}}, true},
		"another node":      {choice.Filter{Nodes: []string{"n2"}}, false},
		"a namespace":       {choice.Filter{Namespace: "shop"}, true},
		"another namespace": {choice.Filter{Namespace: "bank"}, false},
		"a group":           {choice.Filter{Groups: []string{"rack1"}}, false},
		"problems":          {choice.Filter{Problems: true}, false},
	} {
		text := shown(t, plugintest.Sample(), options{filter: tc.filter})
		if got := strings.Contains(text, "\npvc-read "); got != tc.shown {
			t.Errorf("%s:\n%s", name, text)
		}
		if total := strings.Contains(text, "\nRead-only: 1 volume\n"); total != tc.filter.Everything() {
			t.Errorf("%s: the total is shown: %v", name, total)
		}
	}
}

// reader are a read-only volume with its PersistentVolume, and a pod that waits for it.
func reader() []client.Object {
	v := plugintest.Sample().ReadOnly[0]
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "to-read"}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: v.Name}
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "user", Name: "reads"}
	failed := plugintest.Event("p", "FailedMount", `MountDevice failed for volume "to-read" : no image`, plugintest.Noon.Add(-time.Minute))
	return []client.Object{&v, pv, plugintest.Pod("p", false), failed}
}

func TestStatusTellsOfPodsThatWaitForAReadOnlyVolume(t *testing.T) {
	s, err := state.Read(t.Context(), plugintest.Cluster(t, reader()...), "", plugintest.Noon)
	plugintest.Must(t, err)
	for _, f := range []choice.Filter{{}, {Problems: true}, {Namespace: "user"}} {
		plugintest.Says(t, shown(t, s, options{filter: f}), "volume pvc-read: pod user/p waits for it: ", "\npvc-read    user/reads   snapshot-monday ")
	}
	if text := shown(t, s, options{filter: choice.Filter{Namespace: "shop"}}); strings.Contains(text, "pvc-read") {
		t.Errorf("its claim of today is in another namespace:\n%s", text)
	}
}

// What is older than the kind, or may not read it, shows the rest.
func TestStatusWithoutReadOnlyVolumes(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupName, Resource: "readonlyvolumes"}
	noPath := apierrors.NewNotFound(resource, "")
	for name, tc := range map[string]struct {
		err  error
		fine bool
	}{
		"not allowed":    {apierrors.NewForbidden(resource, "", nil), true},
		"no such kind":   {&meta.NoKindMatchError{}, true},
		"no such path":   {noPath, true},
		"another reason": {apierrors.NewInternalError(context.DeadlineExceeded), false},
	} {
		api := interceptor.NewClient(plugintest.Cluster(t), interceptor.Funcs{
			List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				if _, is := list.(*v1alpha1.ReadOnlyVolumeList); is {
					return tc.err
				}
				return api.List(ctx, list, opts...)
			},
		})
		s, err := state.Read(t.Context(), api, "", plugintest.Noon)
		if (err == nil) != tc.fine {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			plugintest.Says(t, shown(t, s, options{}), "\npvc-1 ")
		}
	}
}

func TestStatusNamesReadOnlyVolumesWithoutAPersistentVolume(t *testing.T) {
	s := plugintest.Sample()
	s.Uses = claims.Uses{}
	plugintest.Says(t, shown(t, s, options{}), "No PersistentVolume names the read-only pvc-read. Such a volume keeps its snapshot",
		"No PersistentVolume names pvc-busy, pvc-lost. kubectl escache release")
	s.Uses = claims.Uses{"pvc-read": {PersistentVolume: "a"}, "pvc-busy": {PersistentVolume: "b"}, "pvc-lost": {PersistentVolume: "c"}}
	if text := shown(t, s, options{}); strings.Contains(text, "No PersistentVolume") {
		t.Errorf("all have one:\n%s", text)
	}
}

func TestManyReadOnlyVolumesAreShownWithThoseFirstThatHaveAProblem(t *testing.T) {
	objects := reader()
	for n := range maxOthers + 5 {
		v := plugintest.Sample().ReadOnly[0]
		v.Name = fmt.Sprintf("a-%02d", n)
		objects = append(objects, &v)
	}
	s, err := state.Read(t.Context(), plugintest.Cluster(t, objects...), "", plugintest.Noon)
	plugintest.Must(t, err)
	text := shown(t, s, options{})
	plugintest.Says(t, text, "NODES\npvc-read ", "\na-18 ", "… 6 more\n")
	if strings.Contains(text, "\na-19 ") || !strings.Contains(shown(t, s, options{all: true}), "\na-24 ") {
		t.Errorf("not the first ones, or --all does not show all:\n%s", text)
	}
}

package installed_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/records/remedy"
)

func meta(name, component, partOf string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "storage", Name: name, Labels: map[string]string{
		"app.kubernetes.io/part-of": partOf, "app.kubernetes.io/component": component, "app.kubernetes.io/version": "0.3.0",
	}}
}

func objects() []client.Object {
	controller := &appsv1.Deployment{ObjectMeta: meta("c", "controller", "escache-csi")}
	controller.Spec.Replicas = new(int32(2))
	controller.Status = appsv1.DeploymentStatus{UpdatedReplicas: 2, ReadyReplicas: 1}
	node := &appsv1.DaemonSet{ObjectMeta: meta("n", "node", "escache-csi")}
	node.Status = appsv1.DaemonSetStatus{DesiredNumberScheduled: 9, UpdatedNumberScheduled: 4, NumberReady: 8}
	return []client.Object{controller, node, &appsv1.Deployment{ObjectMeta: meta("x", "controller", "ceph-csi")}}
}

func TestWorkloadsOfTheChart(t *testing.T) {
	all, err := installed.Read(t.Context(), fake.NewClientBuilder().WithObjects(objects()...).Build())
	want := installed.Workloads{
		{Component: "controller", Namespace: "storage", Version: "0.3.0", Pods: 2, Updated: 2, Ready: 1},
		{Component: "node", Namespace: "storage", Version: "0.3.0", Pods: 9, Updated: 4, Ready: 8},
	}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Fatalf("%v: %+v", err, all)
	}
	if all[0].Program() != "csi-controller" || all[1].Program() != "csi-node" {
		t.Errorf("%s and %s", all[0].Program(), all[1].Program())
	}
}

func TestHowEscachedRuns(t *testing.T) {
	pods := &appsv1.DaemonSet{ObjectMeta: meta("e", "escached", "escache-csi")}
	for name, c := range map[string]struct {
		objects []client.Object
		want    remedy.Escached
	}{
		"in pods":               {append(objects(), pods), remedy.Escached{Known: true, Pods: true, Namespace: "storage"}},
		"as a systemd unit":     {objects(), remedy.Escached{Known: true, Namespace: "storage"}},
		"no chart is installed": {nil, remedy.Escached{}},
	} {
		all, err := installed.Read(t.Context(), fake.NewClientBuilder().WithObjects(c.objects...).Build())
		if err != nil || all.Escached() != c.want {
			t.Errorf("%s: %v: %+v", name, err, all.Escached())
		}
	}
}

func TestWhatMayNotBeReadIsLeftOut(t *testing.T) {
	broken := errors.New("broken")
	for says, want := range map[error]error{
		apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "deployments"}, "", nil): nil, broken: broken,
	} {
		api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return says },
		})
		if all, err := installed.Read(t.Context(), api); all != nil || !errors.Is(err, want) {
			t.Errorf("%v: %+v, %v", says, all, err)
		}
	}
}

func TestTheImageOfCSINode(t *testing.T) {
	node := &appsv1.DaemonSet{ObjectMeta: meta("n", "node", "escache-csi")}
	node.Spec.Template.Spec.Containers = []corev1.Container{{Name: "registrar", Image: "r"}, {Name: "csi-node", Image: "registry/csi-node:1"}}
	other := &appsv1.DaemonSet{ObjectMeta: meta("o", "node", "ceph-csi")}
	other.Spec.Template.Spec.Containers = []corev1.Container{{Name: "csi-node", Image: "theirs"}}
	refused := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Group: "apps", Resource: "daemonsets"}, "", errors.New("no"))
	}}
	for name, c := range map[string]struct {
		api  *fake.ClientBuilder
		want string
	}{
		"installed":       {fake.NewClientBuilder().WithObjects(other, node), "registry/csi-node:1"},
		"not installed":   {fake.NewClientBuilder().WithObjects(other), ""},
		"may not be read": {fake.NewClientBuilder().WithObjects(node).WithInterceptorFuncs(refused), ""},
	} {
		if got, err := installed.NodeImage(t.Context(), c.api.Build()); err != nil || got != c.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

package preflight

import (
	"bytes"
	"crypto/x509"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/version"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/test/testca"
)

const (
	namespace = "escache-system"
	chart     = "../../charts/escache-csi"
	// rendered is what Helm makes of the chart with everything on.
	rendered = "../../test/chart/testdata/golden/full.yaml"
)

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

// world has the objects of a cluster in which all is well: those of the chart, and what Kubernetes and the
// driver would have made of them.
type world struct {
	t       *testing.T
	objects []client.Object
	version version.Info
	group   string
	client  string // version of this program
}

func healthy(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, version: version.Info{Major: "1", Minor: "36", GitVersion: "v1.36.3"}, client: "v0.1.0"}
	crds, err := filepath.Glob(chart + "/crds/*.yaml")
	if err != nil || len(crds) != len(kinds) {
		t.Fatalf("%d CRDs in the chart, %d here: %v", len(crds), len(kinds), err)
	}
	for _, path := range crds {
		for _, crd := range w.read(path) {
			w.objects = append(w.objects, established(crd))
		}
	}
	for _, name := range append(inGroup(snapshotKinds, snapshotGroup), inGroup(groupSnapshotKinds, groupSnapshotGroup)...) {
		crd := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"spec": map[string]any{"versions": []any{map[string]any{"name": "v1", "served": true}}},
		}}
		crd.SetName(name)
		w.objects = append(w.objects, established(crd))
	}
	for _, o := range w.read(rendered) {
		w.chartObject(o)
	}
	w.lease()
	return w
}

// inGroup are the names of an API group's CRDs.
func inGroup(kinds []string, group string) (names []string) {
	for _, kind := range kinds {
		names = append(names, kind+"."+group)
	}
	return names
}

func (w *world) read(path string) []*unstructured.Unstructured {
	w.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			w.t.Fatalf("%s: %v", path, err)
		}
		if len(o.Object) > 0 {
			all = append(all, o)
		}
	}
}

func established(crd *unstructured.Unstructured) *unstructured.Unstructured {
	crd.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Established", "status": "True"}}}
	return crd
}

// chartObject adds an object of the chart as it is once everything runs.
func (w *world) chartObject(o *unstructured.Unstructured) {
	w.t.Helper()
	into := func(to client.Object) {
		w.t.Helper()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, to); err != nil {
			w.t.Fatal(err)
		}
		w.objects = append(w.objects, to)
	}
	switch o.GetKind() {
	case "Deployment":
		d := &appsv1.Deployment{}
		into(d)
		d.Status.ReadyReplicas = *d.Spec.Replicas
		w.mounted(d.Spec.Template)
	case "DaemonSet":
		d := &appsv1.DaemonSet{}
		into(d)
		d.Status.DesiredNumberScheduled, d.Status.NumberReady = 6, 6
		w.mounted(d.Spec.Template)
	case "ConfigMap":
		into(&corev1.ConfigMap{})
	case "CSIDriver":
		into(&storagev1.CSIDriver{})
	case "StorageClass":
		class := &storagev1.StorageClass{}
		into(class)
		class.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
	case "VolumeSnapshotClass":
		w.objects = append(w.objects, o)
	case "NodeGroup":
		g := &v1alpha1.NodeGroup{}
		into(g)
		g.Spec.Cordoned = false
		g.Status.Conditions = []metav1.Condition{{Type: v1alpha1.GroupReady, Status: metav1.ConditionTrue}}
		for _, name := range g.Spec.Nodes {
			g.Status.Members = append(g.Status.Members, v1alpha1.NodeGroupMember{
				Name: name, Ready: true, Version: "v0.1.0", CacheCapacityBytes: 100 << 30, LastSeen: new(metav1.NewTime(noon.Add(-time.Minute))),
			})
			w.node(name)
		}
	}
}

// mounted makes the Secrets that pods mount, each with one certificate and every key that is asked for.
func (w *world) mounted(template corev1.PodTemplateSpec) {
	for name, needed := range (workloads{"x": {template: template}}).needs() {
		if at := slices.IndexFunc(w.objects, func(o client.Object) bool { _, ok := o.(*corev1.Secret); return ok && o.GetName() == name }); at >= 0 {
			continue
		}
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{}}
		for _, key := range needed.keys {
			secret.Data[key] = []byte("x")
		}
		w.objects = append(w.objects, secret)
		if slices.Contains(needed.keys, "tls.crt") {
			w.ends(name, noon.AddDate(1, 0, 0))
		}
	}
}

// ends gives a Secret a certificate that ends then.
func (w *world) ends(name string, end time.Time) {
	w.t.Helper()
	authority, err := testca.NewAuthority("a")
	must(w.t, err)
	pair, err := authority.Issue(name, func(c *x509.Certificate) { c.NotBefore, c.NotAfter = noon.AddDate(-1, 0, 0), end })
	must(w.t, err)
	of[*corev1.Secret](w, name).Data["tls.crt"] = pair.Certificate
}

func (w *world) node(name string) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1" + name[1:]}, {Type: corev1.NodeHostName, Address: name}}
	w.objects = append(w.objects, n, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: v1alpha1.DriverName}}},
	})
}

func (w *world) lease() {
	w.objects = append(w.objects, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: leaseName},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("cache-controller-1"), LeaseDurationSeconds: new(int32(10)), RenewTime: new(metav1.NewMicroTime(noon.Add(-3 * time.Second))),
		},
	})
}

// of is the object of a type and a name.
func of[T client.Object](w *world, name string) T {
	w.t.Helper()
	for _, o := range w.objects {
		if found, ok := o.(T); ok && o.GetName() == name {
			return found
		}
	}
	w.t.Fatalf("no %T %s", *new(T), name)
	panic("unreachable")
}

func (w *world) without(o client.Object) {
	w.objects = slices.DeleteFunc(w.objects, func(other client.Object) bool { return other == o })
}

func (w *world) cluster() *Cluster {
	w.t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		w.t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(w.objects...).Build()
	return &Cluster{
		API: api, Kubernetes: w.version, Namespace: namespace, Group: w.group, Version: w.client, Now: func() time.Time { return noon },
	}
}

func (w *world) results() []checklist.Result {
	w.t.Helper()
	return checklist.Run(w.t.Context(), w.cluster().Checks())
}

func TestAClusterInWhichAllIsWellPassesEveryCheck(t *testing.T) {
	results := healthy(t).results()
	seen := map[string]string{}
	for _, r := range results {
		if r.State != checklist.OK || r.Found == "" || r.Remedy != "" {
			t.Errorf("%+v", r)
		}
		seen[r.Check] = r.Found
	}
	for check, word := range map[string]string{
		"Kubernetes": "v1.36.3", "CRDs": "7 of escache.io/v1alpha1", "CSIDriver": "csi.escache.io", "csi-controller": "all 3", "csi-node": "all 6",
		"escached": "all 6", "leader": "cache-controller-1 leads", "group rack-2": "3 hosts", "host n4": "over 10.0.0.14", "versions": "everything is 0.1.0",
		"StorageClass fast": "pool fast", "StorageClass bulk": "pool meta, data pool bulk", "Secret ctl": "the pods of controller need its keyring",
		"Secret cache-controller-tls": "ends 2028-03-01", "Secret cache-replication": "need its secret", "snapshots": "gone, kept",
	} {
		if !strings.Contains(seen[check], word) {
			t.Errorf("%s does not say %q: %q", check, word, seen[check])
		}
	}
	if len(results) != 26 {
		t.Errorf("%d checks: %v", len(results), seen)
	}
}

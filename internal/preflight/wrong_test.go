package preflight

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
)

// fault is one thing that is wrong, and what the checks must say of it.
type fault struct {
	spoil       func(*world)
	check       string
	state       checklist.State
	found, todo string
	// also are other checks that suffer.
	also []string
}

func member(w *world, group, name string) *v1alpha1.NodeGroupMember {
	g := of[*v1alpha1.NodeGroup](w, group)
	return &g.Status.Members[slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == name })]
}

func crd(w *world, name string) *unstructured.Unstructured {
	return of[*unstructured.Unstructured](w, name)
}

func faults() map[string]fault {
	const failed, warning, unknown = checklist.Failed, checklist.Warning, checklist.Unknown
	return map[string]fault{
		"old Kubernetes":          {func(w *world) { w.version.Minor = "29" }, "Kubernetes", failed, "the driver needs 1.30", "upgrade", nil},
		"a version of the future": {func(w *world) { w.version.Major = "2" }, "Kubernetes", unknown, "does not know", "support.md", nil},
		"a CRD is missing": {func(w *world) { w.without(crd(w, "cachesnapshots.escache.io")) }, "CRD cachesnapshots", failed,
			"no cachesnapshots.escache.io", "helm show crds", nil},
		"a CRD that is not established": {func(w *world) { delete(crd(w, "nodegroups.escache.io").Object, "status") }, "CRD nodegroups", failed, "Established",
			"helm show crds", nil},
		"a CRD of another version": {func(w *world) {
			versions, _, _ := unstructured.NestedSlice(crd(w, "nodegroups.escache.io").Object, "spec", "versions")
			versions[0].(map[string]any)["name"] = "v1"
			must(w.t, unstructured.SetNestedSlice(crd(w, "nodegroups.escache.io").Object, versions, "spec", "versions"))
		}, "CRD nodegroups", failed, "does not serve version v1alpha1", "helm show crds", nil},
		"an older CRD": {func(w *world) { dropField(w, "cachevolumes.escache.io", "spec", "fromVolume") }, "CRD cachevolumes", failed, "it lacks spec.fromVolume",
			"helm show crds", nil},
		"no CSIDriver": {func(w *world) { w.without(of[*storagev1.CSIDriver](w, v1alpha1.DriverName)) }, "CSIDriver", failed, "not installed", "install.md", nil},
		"no chart": {func(w *world) { w.without(of[*appsv1.Deployment](w, "cache-controller")) }, "csi-controller", failed, "escache-system has none",
			"--driver-namespace", nil},
		"one replica is not ready": {func(w *world) { of[*appsv1.Deployment](w, "cache-controller").Status.ReadyReplicas = 1 }, "csi-controller", warning,
			"1 of 3 pods", "component=controller", nil},
		"no image": {func(w *world) {
			of[*appsv1.DaemonSet](w, "cache-escached").Status.NumberReady = 5
			w.pod("n3", "escached", "ImagePullBackOff")
		}, "escached", failed, "5 of 6 pods are ready: n3: main ImagePullBackOff", "describe pods", nil},
		"no label": {func(w *world) {
			s := &of[*appsv1.DaemonSet](w, "cache-node").Status
			s.DesiredNumberScheduled, s.NumberReady = 0, 0
		}, "csi-node", failed, "no node has the label", "escache.io/host=true", nil},
		"no leader": {func(w *world) { w.without(of[*coordinationv1.Lease](w, leaseName)) }, "leader", failed, "has ever led", "logs", nil},
		"a leader that is gone": {func(w *world) {
			of[*coordinationv1.Lease](w, leaseName).Spec.RenewTime = new(metav1.NewMicroTime(noon.Add(-time.Hour)))
		}, "leader", failed, "led last, 1h0m0s ago", "logs", nil},
		"a leader that has given up": {func(w *world) { of[*coordinationv1.Lease](w, leaseName).Spec.HolderIdentity = new("") }, "leader", failed, "no csi-controller leads",
			"logs", nil},
		"no groups": {func(w *world) {
			for _, name := range []string{"rack-1", "rack-2"} {
				w.without(of[*v1alpha1.NodeGroup](w, name))
			}
		}, "NodeGroups", failed, "there is none", "nodeGroups", []string{"StorageClass fast"}},
		"no such group": {func(w *world) { w.group = "rack-9" }, "NodeGroups", failed, "no NodeGroup rack-9", "kubectl get nodegroups", nil},
		"a group that is not ready": {func(w *world) {
			c := &of[*v1alpha1.NodeGroup](w, "rack-1").Status.Conditions[0]
			c.Status, c.Message = metav1.ConditionFalse, "1 of 3 nodes are ready"
		}, "group rack-1", failed, "no volume can be placed: 1 of 3", "its hosts", nil},
		"a group nobody has looked at": {func(w *world) { of[*v1alpha1.NodeGroup](w, "rack-1").Status.Conditions = nil }, "group rack-1", failed, "not looked at it yet",
			"csi-controller", nil},
		"a cordoned group": {func(w *world) { of[*v1alpha1.NodeGroup](w, "rack-2").Spec.Cordoned = true }, "group rack-2", warning, "cordoned", "uncordon rack-2", nil},
		"a group that is kept": {func(w *world) {
			g := of[*v1alpha1.NodeGroup](w, "rack-2")
			g.Status.Conditions = append(g.Status.Conditions, metav1.Condition{Type: v1alpha1.GroupDeletionBlocked, Status: metav1.ConditionTrue, Message: "kept for pvc-1"})
		}, "group rack-2", warning, "kept for pvc-1", "docs/hosts", nil},
		"a host in two groups": {func(w *world) { of[*v1alpha1.NodeGroup](w, "rack-2").Spec.Nodes[0] = "n3" }, "host n3", failed, "in group rack-1 and in rack-2",
			"one of them", nil},
		"no such node": {func(w *world) { w.without(of[*corev1.Node](w, "n2")) }, "host n2", failed, "Kubernetes has no node n2", "NodeGroup rack-1", nil},
		"a node that is not ready": {func(w *world) {
			of[*corev1.Node](w, "n2").Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting"}
		}, "host n2", failed, "not Ready: Kubelet stopped", "describe node n2", nil},
		"a node with another host name": {func(w *world) { of[*corev1.Node](w, "n2").Status.Addresses[1].Address = "n2.example" }, "host n2", warning,
			"seems to be n2.example", "uname -n", nil},
		"a bad replication address": {func(w *world) {
			of[*corev1.Node](w, "n2").Annotations = map[string]string{v1alpha1.AnnotationReplicationAddress: "n2"}
		}, "host n2", failed, `"n2" is not an IP address`, v1alpha1.AnnotationReplicationAddress, nil},
		"loopback for replication": {func(w *world) {
			of[*corev1.Node](w, "n2").Annotations = map[string]string{v1alpha1.AnnotationReplicationAddress: "127.0.0.1"}
		}, "host n2", failed, "no other host reaches", v1alpha1.AnnotationReplicationAddress, nil},
		"no address": {func(w *world) { of[*corev1.Node](w, "n2").Status.Addresses = nil }, "host n2", failed, "no InternalIP", v1alpha1.AnnotationReplicationAddress, nil},
		"one address twice": {func(w *world) {
			of[*corev1.Node](w, "n4").Annotations = map[string]string{v1alpha1.AnnotationReplicationAddress: "10.0.0.12"}
		}, "host n4", failed, "over 10.0.0.12, as n2 does", "of its own", nil},
		"no csi-node": {func(w *world) { of[*storagev1.CSINode](w, "n2").Spec.Drivers = nil }, "host n2", failed, "not registered", "escache.io/host=true", nil},
		"no escached": {func(w *world) { m := member(w, "rack-1", "n2"); m.Ready, m.Message = false, "connection refused" }, "host n2", failed, "connection refused",
			"escached preflight", nil},
		"an old record": {func(w *world) { member(w, "rack-1", "n2").LastSeen = new(metav1.NewTime(noon.Add(-time.Hour))) }, "host n2", failed, "older than 2m0s",
			"csi-controller", nil},
		"no record":                 {func(w *world) { of[*v1alpha1.NodeGroup](w, "rack-1").Status.Members[1].Name = "nx" }, "host n2", failed, "not called it yet", "wait", nil},
		"a cordoned host":           {func(w *world) { of[*v1alpha1.NodeGroup](w, "rack-1").Spec.CordonedNodes = []string{"n2"} }, "host n2", warning, "evacuation", "uncordon n2", nil},
		"another version on a host": {func(w *world) { member(w, "rack-1", "n2").Version = "v0.0.9" }, "versions", warning, "0.0.9: n2;", "upgrade.md", nil},
		"another plugin":            {func(w *world) { w.client = "v0.2.0" }, "versions", warning, "0.2.0: this program", "plugin", nil},
		"no StorageClass": {func(w *world) {
			for _, name := range []string{"fast", "bulk"} {
				of[*storagev1.StorageClass](w, name).Provisioner = "other"
			}
		}, "StorageClasses", warning, "none is of csi.escache.io", "storageClasses", nil},
		"a StorageClass without a pool": {func(w *world) { delete(of[*storagev1.StorageClass](w, "fast").Parameters, "pool") }, "StorageClass fast", failed,
			"pool is required", "parameters.md", nil},
		"another Ceph cluster": {func(w *world) { of[*storagev1.StorageClass](w, "fast").Parameters["clusterID"] = "other" }, "StorageClass fast", failed,
			"knows lab", "ceph fsid", nil},
		"a StorageClass of no group": {func(w *world) { of[*storagev1.StorageClass](w, "fast").Parameters["nodeGroups"] = "rack-7" }, "StorageClass fast", failed, "none of its NodeGroups",
			"nodeGroups", nil},
		"a StorageClass of a group that is missing": {func(w *world) { of[*storagev1.StorageClass](w, "fast").Parameters["nodeGroups"] = "rack-1,rack-7" }, "StorageClass fast", warning,
			"not there: rack-7", "nodeGroups", nil},
		"volumes before pods": {func(w *world) {
			of[*storagev1.StorageClass](w, "fast").VolumeBindingMode = new(storagev1.VolumeBindingImmediate)
		}, "StorageClass fast", warning,
			"before its pod", "WaitForFirstConsumer", nil},
		"no keyring":  {func(w *world) { w.without(of[*corev1.Secret](w, "ctl")) }, "Secret ctl", failed, "not there, and the pods of controller need its keyring", "install.md", nil},
		"another key": {func(w *world) { of[*corev1.Secret](w, "hosts").Data = map[string][]byte{"key": []byte("x")} }, "Secret hosts", failed, `no key "keyring"`, "install.md", nil},
		"an ended certificate": {func(w *world) { w.ends("cache-controller-tls", noon.AddDate(0, 0, -1)) }, "Secret cache-controller-tls", failed, "ended 2027-02-28",
			"csi-controller renews it", nil},
		"a certificate that ends": {func(w *world) { w.ends("page-tls", noon.AddDate(0, 0, 13)) }, "Secret page-tls", warning, "ends 2027-03-14", "csi-controller renews it", nil},
		"no certificate":          {func(w *world) { of[*corev1.Secret](w, "page-tls").Data["tls.crt"] = []byte("x") }, "Secret page-tls", failed, "no certificate", "new one", nil},
		"the kinds of snapshots":  {func(w *world) { w.without(crd(w, "volumesnapshotcontents."+snapshotGroup)) }, "snapshots", failed, "v1 of volumesnapshotcontents", "snapshots.md", nil},
		"the kinds of group snapshots": {func(w *world) { w.without(crd(w, "volumegroupsnapshots."+groupSnapshotGroup)) }, "snapshots", failed,
			"v1 of volumegroupsnapshots", "snapshots.groups.enabled", nil},
		"no class of snapshots": {func(w *world) {
			for _, name := range []string{"gone", "kept"} {
				crd(w, name).Object["driver"] = "other"
			}
		}, "snapshots", warning, "no VolumeSnapshotClass", "snapshots.classes", nil},
	}
}

// TestWhatIsWrongIsNamedWithARemedy spoils one thing at a time. No other check may suffer, unless it is
// named.
func TestWhatIsWrongIsNamedWithARemedy(t *testing.T) {
	for name, f := range faults() {
		t.Run(name, func(t *testing.T) {
			w := healthy(t)
			f.spoil(w)
			seen := false
			for _, r := range w.results() {
				switch {
				case r.Check == f.check && r.State == f.state && strings.Contains(r.Found, f.found) && strings.Contains(r.Remedy, f.todo):
					seen = true
				case r.State != checklist.OK && !slices.Contains(f.also, r.Check):
					t.Errorf("this is not wrong: %+v", r)
				}
			}
			if !seen {
				t.Errorf("%s does not say %q", f.check, f.found)
			}
		})
	}
}

func TestAStorageClassThatNamesSecretsIsTold(t *testing.T) {
	w := healthy(t)
	of[*storagev1.StorageClass](w, "fast").Parameters["csi.storage.k8s.io/provisioner-secret-name"] = "ceph"
	if !slices.ContainsFunc(w.results(), func(r checklist.Result) bool {
		return r.Check == "StorageClass fast" && r.State == checklist.Warning && strings.Contains(r.Found, "provisioner-secret-name")
	}) {
		t.Error("nothing is said")
	}
}

func TestOnlyTheGroupThatIsNamedIsChecked(t *testing.T) {
	w := healthy(t)
	w.group = "rack-2"
	w.without(of[*corev1.Node](w, "n1"))
	for _, r := range w.results() {
		if r.State != checklist.OK || r.Check == "host n1" || r.Check == "group rack-1" {
			t.Errorf("%+v", r)
		}
	}
}

func TestWhatMayNotBeReadIsAFailureButForSecrets(t *testing.T) {
	w := healthy(t)
	c := w.cluster()
	refused := func(what string) error {
		return apierrors.NewForbidden(v1alpha1.GroupVersion().WithResource(what).GroupResource(), "x", nil)
	}
	c.API = interceptor.NewClient(c.API.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, secret := o.(*corev1.Secret); secret {
				return refused("secrets")
			}
			return inner.Get(ctx, key, o, options...)
		},
		List: func(ctx context.Context, inner client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, classes := list.(*storagev1.StorageClassList); classes {
				return refused("storageclasses")
			}
			return inner.List(ctx, list, options...)
		},
	})
	states := map[string]checklist.Result{}
	for _, r := range checklist.Run(t.Context(), c.Checks()) {
		states[r.Check] = r
	}
	if r := states["Secrets"]; r.State != checklist.Unknown || !strings.Contains(r.Remedy, "right to get Secrets") {
		t.Errorf("%+v", r)
	}
	if r := states["StorageClasses"]; r.State != checklist.Failed || !strings.Contains(r.Remedy, "administrator") {
		t.Errorf("%+v", r)
	}
	if r := states["leader"]; r.State != checklist.OK {
		t.Errorf("%+v", r)
	}
}

func TestAnAccountThatMayNotReadSecretsDoesNotTry(t *testing.T) {
	c := healthy(t).cluster()
	c.WithoutSecrets = true
	c.API = interceptor.NewClient(c.API.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, inner client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
			if _, secret := o.(*corev1.Secret); secret {
				t.Errorf("it reads %s", key)
			}
			return inner.Get(ctx, key, o, options...)
		},
	})
	seen := false
	for _, r := range checklist.Run(t.Context(), c.Checks()) {
		switch {
		case r.Check == "Secrets":
			seen = r.State == checklist.Unknown && strings.Contains(r.Found, "may not read")
		case r.State != checklist.OK:
			t.Errorf("%+v", r)
		}
	}
	if !seen {
		t.Error("it does not say that Secrets are not checked")
	}
}

func TestPodsThatWaitForTheSameAreOne(t *testing.T) {
	w := healthy(t)
	of[*appsv1.DaemonSet](w, "cache-node").Status.NumberReady = 2
	for _, node := range []string{"n3", "n2", "n4"} {
		w.pod(node, "node", "ImagePullBackOff")
	}
	w.pod("n1", "node", "")
	p := of[*corev1.Pod](w, "node-n1")
	p.Spec.NodeName, p.Status.ContainerStatuses = "", nil
	p.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable",
		Message: "0/7 nodes are available: 7 node(s) had untolerated taint(s). preemption: 0/7 nodes are available: 7 Preemption is not helpful.",
	}}
	const want = "2 of 6 pods are ready: node-n1: 0/7 nodes are available: 7 node(s) had untolerated taint(s); n2, n3, n4: main ImagePullBackOff"
	for _, r := range w.results() {
		if r.Check == "csi-node" && r.Found != want {
			t.Errorf("%q", r.Found)
		}
	}
}

func TestAnEmptyClusterSaysWhatToInstall(t *testing.T) {
	w := healthy(t)
	w.objects = nil
	results := w.results()
	if n := checklist.Count(results, checklist.Failed); n < 8 || checklist.ExitCode(results) != 1 {
		t.Errorf("%d failures: %+v", n, results)
	}
	for _, r := range results {
		if r.State != checklist.OK && r.Remedy == "" {
			t.Errorf("no remedy: %+v", r)
		}
	}
}

// pod adds one that waits.
func (w *world) pod(node, component, reason string) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: component + "-" + node, Labels: map[string]string{labelPartOf: partOf, labelComponent: component},
	}}
	p.Spec.NodeName = node
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	w.objects = append(w.objects, p)
}

// dropField takes a field out of the schema of a CRD.
func dropField(w *world, name, part, field string) {
	w.t.Helper()
	versions, _, _ := unstructured.NestedSlice(crd(w, name).Object, "spec", "versions")
	properties, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", part, "properties")
	if properties[field] == nil {
		w.t.Fatalf("%s has no %s.%s", name, part, field)
	}
	unstructured.RemoveNestedField(versions[0].(map[string]any), "schema", "openAPIV3Schema", "properties", part, "properties", field)
	must(w.t, unstructured.SetNestedSlice(crd(w, name).Object, versions, "spec", "versions"))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

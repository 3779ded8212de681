// Package installed reads what the Helm chart has installed: the workloads of the driver, their
// versions, and whether all their pods are there.
package installed

import (
	"cmp"
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/records/remedy"
)

// Labels that the chart gives its objects.
const (
	labelPartOf    = "app.kubernetes.io/part-of"
	labelComponent = "app.kubernetes.io/component"
	labelVersion   = "app.kubernetes.io/version"
	partOf         = "escache-csi"
)

// Workload is a Deployment or DaemonSet of the chart.
type Workload struct {
	// Component is controller, node or escached.
	Component string
	Namespace string
	Version   string
	// Pods is how many there should be. Updated is how many are of the newest revision, and Ready how
	// many work.
	Pods, Updated, Ready int32
}

// Program returns the name of the program that the pods run.
func (w Workload) Program() string {
	if w.Component == "escached" {
		return w.Component
	}
	return "csi-" + w.Component
}

// Workloads are those of all releases of the chart. nil means that they cannot be read.
type Workloads []Workload

// Read reads the workloads. A user who may not read them gets nil.
func Read(ctx context.Context, api client.Reader) (Workloads, error) {
	deployments, daemonSets := &appsv1.DeploymentList{}, &appsv1.DaemonSetList{}
	for _, list := range []client.ObjectList{deployments, daemonSets} {
		if err := api.List(ctx, list, client.MatchingLabels{labelPartOf: partOf}); err != nil {
			if apierrors.IsForbidden(err) {
				return nil, nil
			}
			return nil, err
		}
	}
	out := Workloads{}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		w := named(d)
		w.Pods, w.Updated, w.Ready = 1, d.Status.UpdatedReplicas, d.Status.ReadyReplicas
		if d.Spec.Replicas != nil {
			w.Pods = *d.Spec.Replicas
		}
		out = append(out, w)
	}
	for i := range daemonSets.Items {
		d := &daemonSets.Items[i]
		w := named(d)
		w.Pods, w.Updated, w.Ready = d.Status.DesiredNumberScheduled, d.Status.UpdatedNumberScheduled, d.Status.NumberReady
		out = append(out, w)
	}
	slices.SortFunc(out, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Component, b.Component))
	})
	return out, nil
}

func named(o metav1.Object) Workload {
	return Workload{Component: o.GetLabels()[labelComponent], Namespace: o.GetNamespace(), Version: o.GetLabels()[labelVersion]}
}

// Escached says how escached runs.
func (all Workloads) Escached() remedy.Escached {
	how := remedy.Escached{Known: len(all) > 0}
	for _, w := range all {
		how.Namespace = w.Namespace
		how.Pods = how.Pods || w.Component == "escached"
	}
	return how
}

// NodeImage is the image of csi-node's pods. It is empty if there are none, or if the user may not read
// them.
func NodeImage(ctx context.Context, api client.Reader) (string, error) {
	all := &appsv1.DaemonSetList{}
	if err := api.List(ctx, all, client.MatchingLabels{labelPartOf: partOf, labelComponent: "node"}); err != nil {
		if apierrors.IsForbidden(err) {
			return "", nil
		}
		return "", err
	}
	for i := range all.Items {
		for _, c := range all.Items[i].Spec.Template.Spec.Containers {
			if c.Name == "csi-node" {
				return c.Image, nil
			}
		}
	}
	return "", nil
}

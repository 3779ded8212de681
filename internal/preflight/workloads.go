package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/shortlist"
)

// Labels that the chart gives to all its objects, and the components that have pods.
const (
	labelPartOf    = "app.kubernetes.io/part-of"
	labelComponent = "app.kubernetes.io/component"
	labelVersion   = "app.kubernetes.io/version"
	partOf         = "escache-csi"

	componentController = "controller"
	componentNode       = "node"
	componentEscached   = "escached"
)

// program is a Deployment or DaemonSet of the chart. It is nil where there is none.
type program struct {
	labels        map[string]string
	template      corev1.PodTemplateSpec
	wanted, ready int32
}

// workloads are the chart's, by component. escached may be run by something else.
type workloads map[string]*program

func (w workloads) snapshots() bool {
	return w.snapshotter(func(corev1.Container) bool { return true })
}

// groupSnapshots reports whether csi-snapshotter is to take snapshots of several volumes.
func (w workloads) groupSnapshots() bool {
	return w.snapshotter(func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Args, func(arg string) bool { return strings.Contains(arg, "CSIVolumeGroupSnapshot=true") })
	})
}

// snapshotter reports whether csi-controller's pods have a csi-snapshotter for which is is true.
func (w workloads) snapshotter(is func(corev1.Container) bool) bool {
	controller := w[componentController]
	return controller != nil && slices.ContainsFunc(controller.template.Spec.Containers, func(c corev1.Container) bool {
		return c.Name == "csi-snapshotter" && is(c)
	})
}

func (c *Cluster) workloads(ctx context.Context) (workloads, error) {
	deployments, sets := &appsv1.DeploymentList{}, &appsv1.DaemonSetList{}
	for _, list := range []client.ObjectList{deployments, sets} {
		if err := c.API.List(ctx, list, client.InNamespace(c.Namespace), client.MatchingLabels{labelPartOf: partOf}); err != nil {
			return nil, err
		}
	}
	all := workloads{}
	for _, d := range deployments.Items {
		wanted := int32(1)
		if d.Spec.Replicas != nil {
			wanted = *d.Spec.Replicas
		}
		all[d.Labels[labelComponent]] = &program{d.Labels, d.Spec.Template, wanted, d.Status.ReadyReplicas}
	}
	for _, d := range sets.Items {
		all[d.Labels[labelComponent]] = &program{d.Labels, d.Spec.Template, d.Status.DesiredNumberScheduled, d.Status.NumberReady}
	}
	return all, nil
}

// pods checks that the driver's programs run.
func (c *Cluster) pods(ctx context.Context) []checklist.Result {
	all, err := c.workloads(ctx)
	if err != nil {
		return []checklist.Result{unread(err)}
	}
	waiting, err := c.waiting(ctx)
	if err != nil {
		return []checklist.Result{unread(err)}
	}
	var results []checklist.Result
	for _, component := range []string{componentController, componentNode, componentEscached} {
		name := cmp.Or(map[string]string{componentEscached: componentEscached}[component], "csi-"+component)
		results = append(results, c.running(component, all[component], waiting[component]).Of(name))
	}
	return results
}

func (c *Cluster) running(component string, p *program, waiting []string) checklist.Result {
	remedy := "see why with kubectl -n " + c.Namespace + " describe pods -l " + labelComponent + "=" + component
	switch {
	case p == nil && component == componentEscached:
		return checklist.Goodf("not run by the chart (escached.mode: host)")
	case p == nil:
		return checklist.Badf(checklist.Failed, installRemedy+"; or name the driver's namespace with --driver-namespace",
			"namespace %s has none", c.Namespace)
	case p.wanted == 0:
		return checklist.Badf(checklist.Failed,
			"label the hosts: kubectl label node NODE escache.io/host=true (or what node.nodeSelector says)",
			"no pod is wanted: no node has the label, or there are 0 replicas")
	case p.ready < p.wanted:
		state := checklist.Failed
		if component == componentController && p.ready > 0 {
			state = checklist.Warning // one serves
		}
		text := fmt.Sprintf("%d of %d pods are ready", p.ready, p.wanted)
		if len(waiting) > 0 {
			text += ": " + strings.Join(waiting, "; ")
		}
		return checklist.Badf(state, remedy, "%s", text)
	}
	return checklist.Goodf("all %d pods are ready", p.wanted)
}

// waiting says why pods are not ready, and which, by component.
func (c *Cluster) waiting(ctx context.Context) (map[string][]string, error) {
	pods := &corev1.PodList{}
	if err := c.API.List(ctx, pods, client.InNamespace(c.Namespace), client.MatchingLabels{labelPartOf: partOf}); err != nil {
		return nil, err
	}
	where := map[string]map[string][]string{} // by component and reason
	for i := range pods.Items {
		pod := &pods.Items[i]
		if why := reason(pod); why != "" {
			component := pod.Labels[labelComponent]
			if where[component] == nil {
				where[component] = map[string][]string{}
			}
			where[component][why] = append(where[component][why], cmp.Or(pod.Spec.NodeName, pod.Name))
		}
	}
	all := map[string][]string{}
	for component, reasons := range where {
		for _, why := range slices.Sorted(maps.Keys(reasons)) {
			slices.Sort(reasons[why])
			all[component] = append(all[component], shortlist.Of(reasons[why])+": "+why)
		}
	}
	return all, nil
}

// reason says what a pod waits for; "" if it is ready.
func reason(pod *corev1.Pod) string {
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
			return strings.TrimSpace(c.Name + " " + w.Reason)
		}
	}
	for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady} {
		for _, c := range pod.Status.Conditions {
			if c.Type == kind && c.Status == corev1.ConditionFalse {
				sentence, _, _ := strings.Cut(cmp.Or(c.Message, c.Reason), ". ") // the scheduler's first one says it all
				return sentence
			}
		}
	}
	return ""
}

const (
	leaseName = "escache-csi-controller"
	// leaseGrace is how much longer than it lasts a lease may be old: clocks differ.
	leaseGrace = time.Minute
)

func (c *Cluster) leader(ctx context.Context) checklist.Result {
	lease := &coordinationv1.Lease{}
	remedy := "see why no csi-controller leads: kubectl -n " + c.Namespace + " logs -l " + labelComponent + "=" + componentController +
		" -c csi-controller"
	err := c.API.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: leaseName}, lease)
	switch {
	case apierrors.IsNotFound(err):
		return checklist.Badf(checklist.Failed, remedy, "no csi-controller has ever led in namespace %s", c.Namespace)
	case err != nil:
		return unread(err)
	case lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "",
		lease.Spec.RenewTime == nil, lease.Spec.LeaseDurationSeconds == nil:
		return checklist.Badf(checklist.Failed, remedy, "no csi-controller leads")
	}
	age := c.Now().Sub(lease.Spec.RenewTime.Time)
	if age > time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second+leaseGrace {
		return checklist.Badf(checklist.Failed, remedy, "%s led last, %s ago", *lease.Spec.HolderIdentity, age.Round(time.Second))
	}
	return checklist.Goodf("%s leads", *lease.Spec.HolderIdentity)
}

// versions compares the versions of the programs: the chart's label of each, what each escached says, and
// that of this program. They may differ while an upgrade goes on.
func (c *Cluster) versions(ctx context.Context) checklist.Result {
	all, err := c.workloads(ctx)
	if err != nil {
		return unread(err)
	}
	groups := &v1alpha1.NodeGroupList{}
	if err := c.API.List(ctx, groups); err != nil {
		return unread(err)
	}
	of := map[string][]string{}
	add := func(version, who string) {
		if version = strings.TrimPrefix(version, "v"); version != "" && version != "unknown" {
			of[version] = append(of[version], who)
		}
	}
	add(c.Version, "this program")
	for _, component := range slices.Sorted(maps.Keys(all)) {
		add(all[component].labels[labelVersion], "the chart's "+component)
	}
	for _, g := range groups.Items {
		for _, m := range g.Status.Members {
			if m.Ready {
				add(m.Version, m.Name)
			}
		}
	}
	if len(of) <= 1 {
		for version := range of {
			return checklist.Goodf("everything is %s", version)
		}
		return checklist.Badf(checklist.Unknown, installRemedy, "nothing says its version")
	}
	var list []string
	for _, version := range slices.Sorted(maps.Keys(of)) {
		list = append(list, version+": "+shortlist.Of(of[version]))
	}
	return checklist.Badf(checklist.Warning, "finish the upgrade (docs/upgrade.md), and use the plugin of the same release",
		"%s", strings.Join(list, "; "))
}

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/plugin/bench/job"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// benchStage is an API server with what a benchmark needs. Each time the Job is read, its controller and
// the kubelet take their next step.
type benchStage struct {
	client.WithWatch

	steps []func(*benchStage)
	pod   *corev1.Pod
	log   string
	// forbidden is the verb that the user may not use.
	forbidden string
	// keeps: the claim stays when the Job is deleted.
	keeps bool
}

func newBenchStage(t *testing.T, steps ...func(*benchStage)) *benchStage {
	t.Helper()
	s := &benchStage{steps: steps}
	node := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "escache-system", Name: "escache-node", Labels: map[string]string{
		"app.kubernetes.io/part-of": "escache-csi", "app.kubernetes.io/component": "node",
	}}}
	node.Spec.Template.Spec.Containers = []corev1.Container{{Name: "csi-node", Image: "registry.example/csi-node:1"}}
	retained := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "kept"}, ReclaimPolicy: new(corev1.PersistentVolumeReclaimRetain)}
	static := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Provisioner: "kubernetes.io/no-provisioner"}
	plain := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "ceph-rbd"}, Provisioner: "rbd.csi.ceph.com"}
	used, promised := classVolume("used", "escache"), classVolume("promised", "escache")
	used.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "1"}
	used.Status.Phase = corev1.VolumeBound
	promised.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "later"} // as adopt does: no other claim gets it
	base := fake.NewClientBuilder().WithObjects(node, retained, static, plain, plugintest.Class(), used, promised, classVolume("other", "local")).
		WithIndex(&corev1.Event{}, "involvedObject.name", func(o client.Object) []string {
			return []string{o.(*corev1.Event).InvolvedObject.Name}
		}).Build()
	s.WithWatch = interceptor.NewClient(base, interceptor.Funcs{Create: s.create, Get: s.get, Delete: s.delete, List: s.list})
	return s
}

// classVolume is a PersistentVolume of a StorageClass that any claim may get.
func classVolume(name, class string) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.StorageClassName, pv.Status.Phase = class, corev1.VolumeAvailable
	return pv
}

func (s *benchStage) list(ctx context.Context, base client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
	if _, isVolumes := list.(*corev1.PersistentVolumeList); isVolumes && s.forbidden == "list persistentvolumes" {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumes"}, "", errors.New("no ClusterRole"))
	}
	return base.List(ctx, list, opts...)
}

func (s *benchStage) create(ctx context.Context, base client.WithWatch, o client.Object, opts ...client.CreateOption) error {
	review, isReview := o.(*authorizationv1.SelfSubjectAccessReview)
	if !isReview {
		return base.Create(ctx, o, opts...)
	}
	a := review.Spec.ResourceAttributes
	review.Status.Allowed = a.Namespace == "shop" && a.Verb+" "+a.Resource != s.forbidden
	return nil
}

func (s *benchStage) get(ctx context.Context, base client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if _, isJob := o.(*batchv1.Job); isJob && len(s.steps) > 0 {
		next := s.steps[0]
		s.steps = s.steps[1:]
		next(s)
	}
	return base.Get(ctx, key, o, opts...)
}

// delete removes what belongs to the Job with it, as Kubernetes does.
func (s *benchStage) delete(ctx context.Context, base client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
	if err := base.Delete(ctx, o, opts...); err != nil {
		return err
	}
	own := []client.DeleteAllOfOption{client.InNamespace("shop"), client.HasLabels{job.Label}}
	if s.keeps {
		return nil
	}
	return errors.Join(base.DeleteAllOf(ctx, &corev1.Pod{}, own...), base.DeleteAllOf(ctx, &corev1.PersistentVolumeClaim{}, own...))
}

func demand(err error) {
	if err != nil {
		panic(err)
	}
}

// makePod plays the controllers of Jobs and of ephemeral volumes.
func makePod(s *benchStage) {
	jobs := &batchv1.JobList{}
	demand(s.List(context.Background(), jobs))
	labels := jobs.Items[0].Spec.Template.Labels
	s.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Labels: labels}, Spec: jobs.Items[0].Spec.Template.Spec}
	demand(s.Create(context.Background(), s.pod))
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p-volume-0", Labels: labels}}
	claim.Spec.StorageClassName = new("escache")
	demand(s.Create(context.Background(), claim))
	demand(s.Create(context.Background(), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "e"}, Type: "Warning", Reason: "ProvisioningFailed", Message: "no room in rack1",
		InvolvedObject: corev1.ObjectReference{Kind: "PersistentVolumeClaim", Name: "p-volume-0"},
	}))
}

// store updates an object and its status.
func (s *benchStage) store(o client.Object) {
	status, isObject := o.DeepCopyObject().(client.Object)
	if !isObject {
		panic(o)
	}
	demand(s.Update(context.Background(), o))
	status.SetResourceVersion(o.GetResourceVersion())
	demand(s.Status().Update(context.Background(), status))
	demand(s.Get(context.Background(), client.ObjectKeyFromObject(o), o))
}

func (s *benchStage) become(state corev1.ContainerState) {
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: job.Container, State: state}}
	s.store(s.pod)
}

func startPod(s *benchStage) {
	claim := &corev1.PersistentVolumeClaim{}
	demand(s.Get(context.Background(), client.ObjectKey{Namespace: "shop", Name: "p-volume-0"}, claim))
	claim.Spec.VolumeName, claim.Status.Phase = "pv-1", corev1.ClaimBound
	s.store(claim)
	s.pod.Spec.NodeName = "n1"
	s.become(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	s.log = `{"progress":"fill a file of 128Mi on escache"}` + "\n" + `{"progr`
}

func logs(m benchmark.Message) func(*benchStage) {
	return func(s *benchStage) {
		line, err := json.Marshal(m)
		demand(err)
		s.log = strings.TrimSuffix(s.log, `{"progr`) + string(line) + "\n"
	}
}

func endPod(code int32) func(*benchStage) {
	return func(s *benchStage) {
		s.become(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: "Error"}})
	}
}

// measured is a result in which the first volume is twice as fast in all tests.
func measured(volumes ...string) benchmark.Result {
	result := benchmark.Result{Volumes: volumes}
	for n, test := range benchmark.Tests() {
		outcome := benchmark.Outcome{Test: test}
		operation := int64(benchmark.BlockBytes)
		if test.Large() {
			operation = benchmark.ChunkBytes
		}
		for i := range volumes {
			var turns []benchmark.Turn
			for round := range 3 {
				latencies := []time.Duration{time.Duration(1+n+round) * time.Millisecond, time.Duration(2+n+round) * time.Millisecond}
				turns = append(turns, benchmark.Summarise(latencies, operation, time.Duration((i+1)*(n+1))*time.Millisecond))
			}
			outcome.Turns = append(outcome.Turns, turns)
		}
		result.Tests = append(result.Tests, outcome)
	}
	return result
}

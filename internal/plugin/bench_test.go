package plugin

import (
	"bytes"
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
	"github.com/escache/escache-csi/internal/plugin/bench"
	"github.com/escache/escache-csi/internal/plugin/failure"
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
	base := fake.NewClientBuilder().WithObjects(node, retained, static, plain, escacheClass(), used, promised, classVolume("other", "local")).
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
	own := []client.DeleteAllOfOption{client.InNamespace("shop"), client.HasLabels{bench.Label}}
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
	job := &batchv1.JobList{}
	demand(s.List(context.Background(), job))
	labels := job.Items[0].Spec.Template.Labels
	s.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", Labels: labels}, Spec: job.Items[0].Spec.Template.Spec}
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
	s.pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: bench.Container, State: state}}
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

func benchOptions(t *testing.T, change func(*benchFlags)) (bench.Options, benchFlags) {
	t.Helper()
	f := benchFlags{
		class: "escache", compare: "ceph-rbd", size: "256Mi", seconds: 3, rounds: 3, node: "n1", output: "table", timeout: time.Minute,
	}
	if change != nil {
		change(&f)
	}
	o, err := f.options()
	if err != nil {
		t.Fatal(err)
	}
	o.Name, o.Namespace = "escache-bench-abcde", "shop"
	return o, f
}

// benchmarkOn runs the command, and returns what it has said beside its result.
func (s *benchStage) benchmarkOn(ctx context.Context, t *testing.T, change func(*benchFlags)) (out, progress string, err error) {
	t.Helper()
	c, printed := plugintest.Output()
	o, f := benchOptions(t, change)
	run := &benchRun{
		Console: c, api: s, pause: time.Millisecond, removal: 50 * time.Millisecond,
		logs: func(context.Context, string, string, string) ([]byte, error) { return []byte(s.log), nil },
	}
	err = runBench(ctx, run, o, f)
	return printed.String(), c.ErrOut.(*bytes.Buffer).String(), err
}

// nothingIsLeft looks for everything that a benchmark makes.
func (s *benchStage) nothingIsLeft(t *testing.T) {
	t.Helper()
	for _, list := range []client.ObjectList{&batchv1.JobList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{}} {
		if err := s.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if text, err := json.Marshal(list); err != nil || !strings.Contains(string(text), `"items":[]`) {
			t.Errorf("left: %s", text)
		}
	}
}

func nothing(*benchStage) {}

func TestBenchComparesVolumesAndRemovesThem(t *testing.T) {
	result := measured("escache", "ceph-rbd")
	for _, output := range []string{"table", "json"} {
		s := newBenchStage(t, nothing, makePod, nothing, startPod, nothing, logs(benchmark.Message{Progress: "round 1 of 3"}), nothing,
			logs(benchmark.Message{Result: &result}), endPod(0))
		out, progress, err := s.benchmarkOn(t.Context(), t, func(f *benchFlags) { f.output = output })
		if err != nil {
			t.Fatal(err)
		}
		plugintest.Golden(t, "bench."+output, out)
		plugintest.Golden(t, "bench.progress", progress)
		fitsEightyColumns(t, progress)
		if output == "table" {
			fitsEightyColumns(t, out)
		}
		s.nothingIsLeft(t)
	}
}

func fitsEightyColumns(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

func TestBenchOfOneVolumeHasNoRatio(t *testing.T) {
	long := strings.Repeat("long-", 12) + "name"
	report := bench.NewReport("n1", benchmark.Plan{Bytes: 1 << 30, Rounds: 3, Turn: time.Second}, measured(long))
	var out bytes.Buffer
	if err := report.Print(&out); err != nil || strings.Contains(out.String(), "RATIO") {
		t.Errorf("%v\n%s", err, out.String())
	}
	fitsEightyColumns(t, out.String())
}

func TestBenchDryRunPrintsTheJobAndMakesNothing(t *testing.T) {
	s := newBenchStage(t)
	out, progress, err := s.benchmarkOn(t.Context(), t, func(f *benchFlags) { f.dryRun, f.secret = true, "pull" })
	if err != nil || progress != "" {
		t.Fatalf("%v, %s", err, progress)
	}
	plugintest.Golden(t, "bench.job.yaml", out)
	s.nothingIsLeft(t)
}

func TestBenchRefusesBeforeItMakesAnything(t *testing.T) {
	for says, tc := range map[string]struct {
		forbidden string
		flags     func(*benchFlags)
	}{
		"there is no StorageClass none":                       {"", func(f *benchFlags) { f.compare = "none" }},
		"kept has the reclaim policy Retain":                  {"", func(f *benchFlags) { f.compare = "kept" }},
		"static makes no volumes":                             {"", func(f *benchFlags) { f.class = "static" }},
		"you may not create jobs in namespace shop":           {"create jobs", nil},
		"you may not delete jobs in namespace shop":           {"delete jobs", nil},
		"you may not list persistentvolumeclaims in":          {"list persistentvolumeclaims", nil},
		"you may not list persistentvolumes, and nothing":     {"list persistentvolumes", nil},
		"you may not get pods/log in namespace shop, and not": {"get pods", nil},
	} {
		s := newBenchStage(t, nothing)
		s.forbidden = tc.forbidden
		_, progress, err := s.benchmarkOn(t.Context(), t, tc.flags)
		if err == nil || !strings.Contains(err.Error(), says) || progress != "" {
			t.Errorf("%v, want %q; %s", err, says, progress)
		}
		s.nothingIsLeft(t)
	}
}

// Kubernetes gives a claim such a volume before it makes a new one. The benchmark would write to it, and delete it.
func TestBenchRefusesAClassWithAVolumeThatWaitsForAClaim(t *testing.T) {
	early, annotated := classVolume("early", "ceph-rbd"), classVolume("annotated", "")
	early.Status.Phase = corev1.VolumePending
	annotated.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: "ceph-rbd"}
	for _, pv := range []*corev1.PersistentVolume{classVolume("somebodys", "ceph-rbd"), early, annotated} {
		for _, dry := range []bool{true, false} {
			s := newBenchStage(t, nothing)
			demand(s.Create(t.Context(), pv.DeepCopy()))
			_, progress, err := s.benchmarkOn(t.Context(), t, func(f *benchFlags) { f.dryRun = dry })
			if err == nil || !strings.Contains(err.Error(), "PersistentVolume "+pv.Name+" of StorageClass ceph-rbd") || progress != "" {
				t.Errorf("%s: %v; %s", pv.Name, err, progress)
			}
			s.nothingIsLeft(t)
		}
	}
}

func TestBenchRemovesEverythingWhenItFails(t *testing.T) {
	for says, steps := range map[string][]func(*benchStage){
		"no result: volume escache: no direct I/O": {makePod, startPod, func(s *benchStage) {
			logs(benchmark.Message{Error: "volume escache: no direct I/O"})(s)
			endPod(1)(s)
		}},
		"no result: csi-node: unknown command": {makePod, startPod, func(s *benchStage) {
			s.log = "csi-node: unknown command\n"
			endPod(1)(s)
		}},
		"no result: is --image an image of csi-node": {makePod, startPod, func(s *benchStage) {
			s.log = ""
			endPod(0)(s)
		}},
		"the pod was deleted before it was done": {makePod, startPod, nothing, func(s *benchStage) { demand(s.Delete(context.Background(), s.pod)) }},
	} {
		s := newBenchStage(t, steps...)
		_, _, err := s.benchmarkOn(t.Context(), t, nil)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
		s.nothingIsLeft(t)
	}
}

func TestBenchGivesUpOnAPodThatDoesNotStart(t *testing.T) {
	s := newBenchStage(t, makePod)
	_, _, err := s.benchmarkOn(t.Context(), t, func(f *benchFlags) { f.timeout = 3 * time.Second })
	if !errors.Is(err, failure.ErrTimeUp) || !strings.Contains(err.Error(), "claim p-volume-0 of StorageClass escache is not bound: ProvisioningFailed: no room") {
		t.Error(err)
	}
	s.nothingIsLeft(t)
}

func TestBenchRemovesEverythingWhenItIsInterrupted(t *testing.T) {
	for name, steps := range map[string][]func(*benchStage){
		"before the pod is there": {}, "before the pod starts": {makePod}, "in the middle": {makePod, startPod, nothing},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		s := newBenchStage(t, append(steps, func(*benchStage) { cancel() })...)
		if _, _, err := s.benchmarkOn(ctx, t, nil); !errors.Is(err, failure.ErrInterrupted) {
			t.Errorf("%s: %v", name, err)
		}
		s.nothingIsLeft(t)
	}
}

func TestBenchNamesWhatIsNotRemoved(t *testing.T) {
	result := measured("escache")
	s := newBenchStage(t, makePod, startPod, logs(benchmark.Message{Result: &result}), endPod(0))
	s.keeps = true
	out, _, err := s.benchmarkOn(t.Context(), t, func(f *benchFlags) { f.compare = "" })
	if err == nil || !strings.Contains(err.Error(), "claim p-volume-0 is left") || !strings.Contains(out, "sync write") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestBenchWithoutTheImageAsksForIt(t *testing.T) {
	s := newBenchStage(t)
	demand(s.DeleteAllOf(t.Context(), &appsv1.DaemonSet{}, client.InNamespace("escache-system")))
	if _, _, err := s.benchmarkOn(t.Context(), t, nil); !errors.Is(err, failure.ErrUsage) || !strings.Contains(err.Error(), "--image") {
		t.Error(err)
	}
}

func TestARefusedJobLeavesNothingToRemove(t *testing.T) {
	jobs := schema.GroupResource{Group: "batch", Resource: "jobs"}
	for _, tc := range []struct {
		err  error
		made bool
	}{
		{apierrors.NewForbidden(jobs, "x", errors.New("quota")), false},
		{apierrors.NewAlreadyExists(jobs, "x"), false},
		{apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "shop"), false},
		{apierrors.NewTimeoutError("no answer from etcd", 1), true},
		{apierrors.NewInternalError(errors.New("connection lost")), true},
		{context.DeadlineExceeded, true},
	} {
		if got := maybeMade(tc.err); got != tc.made {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}

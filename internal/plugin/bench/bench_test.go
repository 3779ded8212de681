package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/plugin/bench/job"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

func benchOptions(t *testing.T, change func(*flagValues)) (job.Options, flagValues) {
	t.Helper()
	f := flagValues{
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
func (s *benchStage) benchmarkOn(ctx context.Context, t *testing.T, change func(*flagValues)) (out, progress string, err error) {
	t.Helper()
	c, printed := plugintest.Output()
	o, f := benchOptions(t, change)
	m := &measurement{
		Console: c, api: s, pause: time.Millisecond, removal: 50 * time.Millisecond,
		logs: func(context.Context, string, string, string) ([]byte, error) { return []byte(s.log), nil },
	}
	err = run(ctx, m, o, f)
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
		out, progress, err := s.benchmarkOn(t.Context(), t, func(f *flagValues) { f.output = output })
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
	report := job.NewReport("n1", benchmark.Plan{Bytes: 1 << 30, Rounds: 3, Turn: time.Second}, measured(long))
	var out bytes.Buffer
	if err := report.Print(&out); err != nil || strings.Contains(out.String(), "RATIO") {
		t.Errorf("%v\n%s", err, out.String())
	}
	fitsEightyColumns(t, out.String())
}

func TestBenchDryRunPrintsTheJobAndMakesNothing(t *testing.T) {
	s := newBenchStage(t)
	out, progress, err := s.benchmarkOn(t.Context(), t, func(f *flagValues) { f.dryRun, f.secret = true, "pull" })
	if err != nil || progress != "" {
		t.Fatalf("%v, %s", err, progress)
	}
	plugintest.Golden(t, "bench.job.yaml", out)
	s.nothingIsLeft(t)
}

func TestBenchRefusesBeforeItMakesAnything(t *testing.T) {
	for says, tc := range map[string]struct {
		forbidden string
		flags     func(*flagValues)
	}{
		"there is no StorageClass none":                       {"", func(f *flagValues) { f.compare = "none" }},
		"kept has the reclaim policy Retain":                  {"", func(f *flagValues) { f.compare = "kept" }},
		"static makes no volumes":                             {"", func(f *flagValues) { f.class = "static" }},
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
			_, progress, err := s.benchmarkOn(t.Context(), t, func(f *flagValues) { f.dryRun = dry })
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
	_, _, err := s.benchmarkOn(t.Context(), t, func(f *flagValues) { f.timeout = 3 * time.Second })
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
	out, _, err := s.benchmarkOn(t.Context(), t, func(f *flagValues) { f.compare = "" })
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

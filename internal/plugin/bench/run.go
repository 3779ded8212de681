package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/plugin/bench/job"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// removalTime bounds the wait until everything is removed. Kubernetes goes on with it afterwards.
const removalTime = 5 * time.Minute

// measurement is one run of it. What it says while it waits goes to the error output.
type measurement struct {
	*console.Console

	api client.Client
	// logs reads the log of a pod's container.
	logs func(ctx context.Context, namespace, pod, container string) ([]byte, error)
	// pause is between two looks. removal bounds the wait until everything is removed.
	pause, removal time.Duration

	options job.Options
	told    int    // lines of progress
	waits   string // said last
	// volumes are the PersistentVolumes that were seen.
	volumes map[string]bool
}

func (r *measurement) tellf(format string, args ...any) {
	_, _ = fmt.Fprint(r.ErrOut, wordwrap.Line(fmt.Sprintf(format, args...), "  ", console.DefaultWidth))
}

// do measures, and removes everything. If only the removal fails, there is a report, too.
func (r *measurement) do(ctx context.Context, options job.Options) (report job.Report, err error) {
	r.options, r.volumes = options, map[string]bool{}
	plan := options.Plan
	r.tellf("Job %s in namespace %s measures new volumes of %s: %s. It writes at most %s to each, and takes about %s once its pod has "+
		"started.", options.Name, options.Namespace, v1alpha1.HumanBytes(plan.Bytes), strings.Join(options.Names(), ", "),
		v1alpha1.HumanBytes(plan.MostWritten()), plan.MeasuringTime(len(options.Classes)).Round(time.Second))
	err = r.api.Create(ctx, options.Job())
	if err != nil && !maybeMade(err) {
		return report, err
	}
	defer func() { err = errors.Join(err, r.remove(context.WithoutCancel(ctx))) }()
	switch {
	case ctx.Err() != nil:
		return report, failure.ErrInterrupted
	case err != nil:
		return report, err
	}
	seen, err := r.start(ctx)
	if err != nil {
		return report, err
	}
	result, err := r.measure(ctx, seen)
	if err != nil {
		return report, err
	}
	return job.NewReport(seen.Pod.Spec.NodeName, plan, *result), nil
}

// maybeMade reports whether the API server has not refused an object, so that it may be there.
func maybeMade(err error) bool {
	return !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) && !apierrors.IsAlreadyExists(err) &&
		!apierrors.IsBadRequest(err) && !apierrors.IsUnauthorized(err)
}

// start waits until the pod runs, and says what it waits for.
func (r *measurement) start(ctx context.Context) (seen job.Seen, err error) {
	waiting, cancel := context.WithTimeout(ctx, r.options.Start)
	defer cancel()
	err = console.Poll(waiting, r.pause, func() (bool, error) {
		if seen, err = r.look(waiting); err != nil {
			return false, err
		}
		if seen.Started() {
			return true, nil
		}
		if ended, failure := seen.Ended(); ended {
			return true, errors.New(failure)
		}
		seen.Events = r.events(waiting, seen)
		if now := seen.Waits(); now != r.waits && waiting.Err() == nil {
			r.waits = now
			r.tellf("waiting: %s", now)
		}
		return false, nil
	}, func() error {
		return fmt.Errorf("%w: %s", r.why(ctx, "the pod has not started within "+r.options.Start.String()), r.waits)
	})
	return seen, err
}

// why says which end of waiting it was.
func (r *measurement) why(ctx context.Context, late string) error {
	if ctx.Err() != nil {
		return failure.ErrInterrupted
	}
	return fmt.Errorf("%w: %s", failure.ErrTimeUp, late)
}

// measure follows the pod's log until its result.
func (r *measurement) measure(ctx context.Context, seen job.Seen) (result *benchmark.Result, err error) {
	limit := r.options.Plan.MostTime(len(r.options.Classes)) + time.Minute/2 // the program in the pod gives up before
	waiting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = console.Poll(waiting, r.pause, func() (bool, error) {
		if seen, err = r.look(waiting); err != nil {
			return false, err
		}
		ended, failure := seen.Ended()
		if seen.Pod == nil {
			return true, fmt.Errorf("the pod was deleted before it was done. %s", failure)
		}
		text, err := r.logs(waiting, seen.Pod.Namespace, seen.Pod.Name, job.Container)
		if err != nil {
			return false, err
		}
		var said string
		if result, said = r.read(text); !ended {
			return false, nil
		}
		if result == nil {
			return true, fmt.Errorf("no result: %s", cmp.Or(said, failure, "is --image an image of csi-node of this version?"))
		}
		return true, nil
	}, func() error { return r.why(ctx, "the benchmark has not ended within "+limit.String()) })
	return result, err
}

// read tells the progress that is new in a log. It returns the result, and what the program has said of an
// error.
func (r *measurement) read(log []byte) (result *benchmark.Result, said string) {
	lines := 0
	for line := range strings.Lines(string(log)) {
		m := benchmark.Message{}
		if json.Unmarshal([]byte(line), &m) != nil {
			said = cmp.Or(said, strings.TrimSpace(line)) // not of the benchmark, such as a refused command line
			continue
		}
		if m.Progress != "" {
			if lines++; lines > r.told {
				r.told = lines
				r.tellf("%s", m.Progress)
			}
		}
		said, result = cmp.Or(m.Error, said), cmp.Or(m.Result, result)
	}
	return result, said
}

// look reads the Job, its pod and its claims.
func (r *measurement) look(ctx context.Context) (seen job.Seen, err error) {
	seen.Job = &batchv1.Job{}
	if err := r.api.Get(ctx, r.key(), seen.Job); err != nil {
		return seen, err
	}
	pods := &corev1.PodList{}
	if err := r.api.List(ctx, pods, r.own()...); err != nil {
		return seen, err
	}
	if len(pods.Items) > 0 {
		seen.Pod = &pods.Items[0]
	}
	seen.Claims, err = r.claims(ctx)
	return seen, err
}

func (r *measurement) key() client.ObjectKey {
	return client.ObjectKey{Namespace: r.options.Namespace, Name: r.options.Name}
}

// own selects what belongs to the Job.
func (r *measurement) own() []client.ListOption {
	return []client.ListOption{client.InNamespace(r.options.Namespace), client.MatchingLabels{job.Label: r.options.Name}}
}

func (r *measurement) claims(ctx context.Context) ([]corev1.PersistentVolumeClaim, error) {
	all := &corev1.PersistentVolumeClaimList{}
	if err := r.api.List(ctx, all, r.own()...); err != nil {
		return nil, err
	}
	for i := range all.Items {
		if name := all.Items[i].Spec.VolumeName; name != "" {
			r.volumes[name] = true
		}
	}
	return all.Items, nil
}

// events are those of all that belongs to the Job. Without the permission there are none.
func (r *measurement) events(ctx context.Context, seen job.Seen) []corev1.Event {
	names := []string{seen.Job.Name}
	if seen.Pod != nil {
		names = append(names, seen.Pod.Name)
	}
	for i := range seen.Claims {
		names = append(names, seen.Claims[i].Name)
	}
	var events []corev1.Event
	for _, name := range names {
		all := &corev1.EventList{}
		about := client.MatchingFields{"involvedObject.name": name}
		if err := r.api.List(ctx, all, client.InNamespace(r.options.Namespace), about); err != nil {
			return nil
		}
		events = append(events, all.Items...)
	}
	return events
}

// remove deletes the Job and waits until nothing is left of it.
func (r *measurement) remove(ctx context.Context) error {
	r.tellf("removing the Job, its pod, claims and volumes")
	ctx, cancel := context.WithTimeout(ctx, r.removal)
	defer cancel()
	made := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: r.options.Namespace, Name: r.options.Name}}
	left := "the Job"
	unfinished := func() error {
		return fmt.Errorf("not everything is removed after %s: %s is left. Kubernetes goes on with it. To look: "+
			"kubectl -n %s get job,pod,pvc -l %s=%s", r.removal, left, r.options.Namespace, job.Label, r.options.Name)
	}
	asked := false
	return console.Poll(ctx, r.pause, func() (bool, error) {
		// Foreground: the Job stays until its pod is gone, and the pod until its claims are.
		if !asked {
			err := r.api.Delete(ctx, made, client.PropagationPolicy(metav1.DeletePropagationForeground))
			if client.IgnoreNotFound(err) != nil {
				return false, fmt.Errorf("remove the Job: %w. Remove it with: kubectl -n %s delete job %s",
					err, r.options.Namespace, r.options.Name)
			}
			asked = true
		}
		now, err := r.left(ctx)
		if err == nil {
			left = now
		}
		return err == nil && left == "", err
	}, unfinished)
}

// left names what is left; it is empty if nothing is.
func (r *measurement) left(ctx context.Context) (string, error) {
	claims, err := r.claims(ctx)
	if err != nil {
		return "", err
	}
	err = r.api.Get(ctx, r.key(), &batchv1.Job{})
	switch {
	case err == nil:
		return "Job " + r.options.Name, nil
	case !apierrors.IsNotFound(err):
		return "", err
	case len(claims) > 0:
		return "claim " + claims[0].Name, nil
	}
	for name := range r.volumes {
		err := r.api.Get(ctx, client.ObjectKey{Name: name}, &corev1.PersistentVolume{})
		switch {
		case err == nil:
			return "PersistentVolume " + name, nil
		case apierrors.IsForbidden(err):
			return "", nil // Kubernetes removes them; it cannot be watched
		case !apierrors.IsNotFound(err):
			return "", err
		}
	}
	return "", nil
}

// podLog reads a container's log.
func podLog(ctx context.Context, c *console.Console, namespace, pod, container string) ([]byte, error) {
	kube, err := c.Clientset()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, console.RequestTimeout)
	defer cancel()
	options := &corev1.PodLogOptions{Container: container, LimitBytes: new(int64(8 << 20))}
	return kube.CoreV1().Pods(namespace).GetLogs(pod, options).DoRaw(ctx)
}

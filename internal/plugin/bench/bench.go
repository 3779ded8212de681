// Package bench is kubectl escache bench: it measures new volumes in a Job, and removes everything
// afterwards.
package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/plugin/bench/job"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/plugin/manifest"
)

// flagValues are those of the command line.
type flagValues struct {
	class, compare  string
	size            string
	seconds, rounds int
	image, secret   string
	node, output    string
	dryRun          bool
	timeout         time.Duration
}

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var f flagValues
	command := &cobra.Command{
		Use:   "bench --storage-class CLASS",
		Short: "Measure a volume of a StorageClass, and compare it with one of another",
		Long: "Measure a new volume of a StorageClass, and compare it with one of another.\n\n" +
			"It makes a Job in your namespace. Its pod has a new claim of each StorageClass, and measures both volumes in turns, so\n" +
			"that host and network are the same. It fills half of each volume with a file, and then writes and reads that for\n" +
			"--seconds with each test. It says first how much it writes at most. It touches no other volume.\n\n" +
			"Job, pod, claims and volumes are removed at the end, also after an error or Ctrl-C. If this program is killed,\n" +
			"Kubernetes removes them by itself, 10 minutes after the Job has ended.\n\n" +
			"The pod needs no rights: it fits a namespace with the Pod Security Standard restricted. docs/performance.md lists the\n" +
			"permissions that you need.",
		Example: `  kubectl escache bench --storage-class escache
  kubectl escache bench --storage-class escache --compare ceph-rbd --node n1 -n test
  kubectl escache bench --storage-class escache --compare ceph-rbd --dry-run`,
		Args: console.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			options, err := f.options()
			if err != nil {
				return err
			}
			if options.Namespace, err = c.Namespace(); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return run(command.Context(), &measurement{
				Console: c, api: api, logs: func(ctx context.Context, namespace, pod, container string) ([]byte, error) {
					return podLog(ctx, c, namespace, pod, container)
				},
				pause: console.PollInterval, removal: removalTime,
			}, options, f)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.class, "storage-class", "", "measure a volume of this StorageClass")
	flags.StringVar(&f.compare, "compare", "", "also measure a volume of this one, in turns; name the same one to see how figures vary")
	flags.StringVar(&f.size, "size", "1Gi", "size of each volume, from 256Mi to 1Ti")
	flags.IntVar(&f.seconds, "seconds", 20, "how long each test takes on each volume, in all rounds together")
	flags.IntVar(&f.rounds, "rounds", 5, "how often the volumes take turns; medians of the rounds are printed")
	flags.StringVar(&f.image, "image", "", "image of csi-node, which measures (default: that of the installed driver)")
	flags.StringVar(&f.secret, "image-pull-secret", "", "Secret in the namespace with which the image is pulled")
	flags.StringVar(&f.node, "node", "", "measure on this node (default: where the scheduler starts the pod)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only check, and print the Job as YAML")
	flags.DurationVar(&f.timeout, "timeout", 10*time.Minute, "give up if the pod has not started after this time")
	flags.StringVarP(&f.output, "output", "o", checklist.Outputs[0], strings.Join(checklist.Outputs, " or "))
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(checklist.Outputs, cobra.ShellCompDirectiveNoFileComp))
	classes := func(command *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return completeClasses(command.Context(), c)
	}
	for _, name := range []string{"storage-class", "compare"} {
		_ = command.RegisterFlagCompletionFunc(name, classes)
	}
	return command
}

// options reads the flags. The namespace and the image may be missing.
func (f *flagValues) options() (job.Options, error) {
	refuse := func(format string, args ...any) (job.Options, error) {
		return job.Options{}, fmt.Errorf("%w: "+format, append([]any{failure.ErrUsage}, args...)...)
	}
	size, err := resource.ParseQuantity(f.size)
	switch {
	case f.class == "":
		return refuse("name the --storage-class to measure")
	case !checklist.IsOutput(f.output):
		return refuse("-o %s is none of %s", f.output, strings.Join(checklist.Outputs, ", "))
	case err != nil:
		return refuse("--size %s is no size such as 1Gi", f.size)
	case f.seconds < 1:
		return refuse("--seconds %d is less than 1", f.seconds)
	case f.rounds < 1:
		return refuse("--rounds %d is less than 1", f.rounds)
	case f.timeout <= 0:
		return refuse("--timeout %s is no time to wait", f.timeout)
	}
	options := job.Options{
		Name: "escache-bench-" + utilrand.String(5), Image: f.image, PullSecret: f.secret, Node: f.node, Start: f.timeout,
		Classes: []string{f.class},
		Plan: benchmark.Plan{
			Bytes: size.Value(), Rounds: f.rounds, Turn: time.Duration(f.seconds) * time.Second / time.Duration(f.rounds),
		},
	}
	if f.compare != "" {
		options.Classes = append(options.Classes, f.compare)
	}
	if err := options.Plan.Validate(); err != nil {
		return refuse("%v; change --size, --seconds or --rounds", err)
	}
	return options, nil
}

func completeClasses(ctx context.Context, c *console.Console) ([]string, cobra.ShellCompDirective) {
	api, err := c.Connect()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	all := &storagev1.StorageClassList{}
	if err := api.List(ctx, all); err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, class := range all.Items {
		names = append(names, class.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func run(ctx context.Context, m *measurement, options job.Options, f flagValues) error {
	if err := findImage(ctx, m.api, &options); err != nil {
		return err
	}
	for _, class := range slices.Compact(slices.Clone(options.Classes)) {
		if err := checkClass(ctx, m.api, class); err != nil {
			return err
		}
	}
	if f.dryRun {
		text, err := manifest.YAML(options.Job())
		m.Printf("%s", text)
		return err
	}
	if err := mayBench(ctx, m.api, options.Namespace); err != nil {
		return err
	}
	report, err := m.do(ctx, options)
	if len(report.Tests) == 0 {
		return err
	}
	if f.output == "json" {
		return errors.Join(err, m.PrintJSON(report))
	}
	return errors.Join(err, report.Print(m.Out))
}

// findImage takes the driver's own image, unless the user has named one.
func findImage(ctx context.Context, api client.Reader, o *job.Options) (err error) {
	if o.Image != "" {
		return nil
	}
	if o.Image, err = installed.NodeImage(ctx, api); err == nil && o.Image == "" {
		err = fmt.Errorf("%w: the DaemonSet of csi-node cannot be found or read, so its image is not known: name it with --image",
			failure.ErrUsage)
	}
	return err
}

// checkClass refuses classes of which something would be left, or whose volume would not be a new one.
func checkClass(ctx context.Context, api client.Reader, name string) error {
	class := &storagev1.StorageClass{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, class)
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no StorageClass %s; kubectl get sc lists them", name)
	case err != nil:
		return err
	case class.Provisioner == "kubernetes.io/no-provisioner":
		return fmt.Errorf("StorageClass %s makes no volumes: the benchmark would write to one that somebody has made for something else",
			name)
	case class.ReclaimPolicy != nil && *class.ReclaimPolicy != corev1.PersistentVolumeReclaimDelete:
		return fmt.Errorf("StorageClass %s has the reclaim policy %s, so the volume would stay: measure a StorageClass that has Delete "+
			"and is the same otherwise", name, *class.ReclaimPolicy)
	}
	return refuseUnclaimed(ctx, api, name)
}

// refuseUnclaimed refuses a class with a PersistentVolume that waits for any claim. Kubernetes would give the
// benchmark that one instead of a new one. One that is meant for another claim is not given away.
func refuseUnclaimed(ctx context.Context, api client.Reader, class string) error {
	all := &corev1.PersistentVolumeList{}
	err := api.List(ctx, all)
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("you may not list persistentvolumes, and nothing was made: one of StorageClass %s could wait for a claim, and "+
			"the benchmark would write to that one; docs/performance.md has a ClusterRole with what bench needs. Ask an administrator "+
			"for it", class)
	case err != nil:
		return err
	}
	for i := range all.Items {
		pv := &all.Items[i]
		if pv.Spec.ClaimRef == nil && cmp.Or(pv.Annotations[corev1.BetaStorageClassAnnotation], pv.Spec.StorageClassName) == class {
			return fmt.Errorf("PersistentVolume %s of StorageClass %s waits for a claim: the benchmark would get it instead of a new one, "+
				"write to it and delete it. Give it to its claim (spec.claimRef), or measure another StorageClass that is the same "+
				"otherwise", pv.Name, class)
		}
	}
	return nil
}

// mayBench asks before anything is made, so that nothing is made that cannot be watched and removed.
func mayBench(ctx context.Context, api client.Client, namespace string) error {
	for _, need := range []authorizationv1.ResourceAttributes{
		{Group: "batch", Resource: "jobs", Verb: "create"},
		{Group: "batch", Resource: "jobs", Verb: "get"},
		{Group: "batch", Resource: "jobs", Verb: "delete"},
		{Resource: "pods", Verb: "list"},
		{Resource: "pods", Subresource: "log", Verb: "get"},
		{Resource: "persistentvolumeclaims", Verb: "list"},
	} {
		need.Namespace = namespace
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &need}}
		if err := api.Create(ctx, review); err != nil {
			return fmt.Errorf("ask what you may do: %w", err)
		}
		if !review.Status.Allowed {
			what := strings.TrimSuffix(need.Resource+"/"+need.Subresource, "/")
			return fmt.Errorf("you may not %s %s in namespace %s, and nothing was made; docs/performance.md has a Role with what bench "+
				"needs. Ask an administrator for it, or choose another namespace with -n", need.Verb, what, namespace)
		}
	}
	return nil
}

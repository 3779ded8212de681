// Package flush is kubectl escache flush: it has dirty caches written back, and shows how far that
// is.
package flush

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// options are the flags of flush.
type options struct {
	node, group, volume string
	drain, wait         bool
	timeout             time.Duration
	parallel            int32
	bytesPerSecond      int64
}

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var f options
	command := &cobra.Command{
		Use:   "flush [PVC]",
		Short: "Write dirty caches back to Ceph",
		Long: "Write the caches of a claim, a volume, a node or a group back to Ceph. A volume that no node has needs no pod for that:\n" +
			"a host with a current copy writes it back.\n\n" +
			"With --drain, new writes go through to Ceph from then on: the volume stays clean and can move at once. This ends when\n" +
			"the volume has moved, or with kubectl delete cacheflush NAME.",
		Example: `  kubectl escache flush data-app-0 -n shop --wait
  kubectl escache flush --node=n1 --drain --wait --timeout=10m`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%w: name one claim; for several volumes use --node or --group", failure.ErrUsage)
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error { return run(command.Context(), c, f, args) },
	}
	flags := command.Flags()
	flags.StringVar(&f.node, "node", "", "flush all volumes that are attached to this node, and those that no node has with a copy there")
	flags.StringVar(&f.group, "group", "", "flush all volumes of this NodeGroup")
	flags.StringVar(&f.volume, "volume", "", "flush the CacheVolume of this name")
	flags.BoolVar(&f.drain, "drain", false, "let new writes go through to Ceph from then on")
	flags.BoolVar(&f.wait, "wait", false, "wait until it is done, and show progress")
	flags.DurationVar(&f.timeout, "timeout", time.Hour, "stop waiting after this time; without --drain, stop flushing too")
	flags.Int32Var(&f.parallel, "parallel", 2, "how many volumes of a node to write back at once")
	flags.Int64Var(&f.bytesPerSecond, "bytes-per-second", 0, "average limit on what a node writes back (0: no limit)")
	return command
}

func run(ctx context.Context, c *console.Console, f options, args []string) error {
	flush, err := newFlush(c, f, args)
	if err != nil {
		return err
	}
	api, err := c.Connect()
	if err != nil {
		return err
	}
	if err := api.Create(ctx, flush); err != nil {
		return err
	}
	if !f.wait {
		c.Printf("cacheflush.%s/%s created; kubectl escache status shows its progress\n", v1alpha1.GroupName, flush.Name)
		return nil
	}
	return waitFor(ctx, c, api, flush.Name, f)
}

// waitFor waits for what was asked for. A drain goes on when the time is over. Everything else is given up then.
func waitFor(ctx context.Context, c *console.Console, api client.WithWatch, name string, f options) error {
	if f.drain {
		return Follow(ctx, c, api, name, f.timeout)
	}
	return Ended(f.timeout, c.Now, func() error { return Follow(ctx, c, api, name, f.timeout+Grace) })
}

// Grace is how long csi-controller may take to give up a CacheFlush whose time is over.
const Grace = time.Minute

// Ended waits for a CacheFlush that csi-controller gives up after a time. Once that has passed, a failure is that the time is up.
func Ended(timeout time.Duration, now func() time.Time, wait func() error) error {
	begin := now()
	err := wait()
	if err != nil && failure.ExitCode(err) == failure.Failed && now().Sub(begin) >= timeout {
		return fmt.Errorf("%w after %s: %w", failure.ErrTimeUp, timeout, err)
	}
	return err
}

func newFlush(c *console.Console, f options, args []string) (*v1alpha1.CacheFlush, error) {
	spec := v1alpha1.CacheFlushSpec{
		Volume: f.volume, Node: f.node, NodeGroup: f.group, Mode: v1alpha1.FlushModeFlush,
		Parallel: f.parallel, BytesPerSecond: f.bytesPerSecond, TimeoutSeconds: max(int32(f.timeout/time.Second), 1),
	}
	target, targets := "volume", 0
	for kind, name := range map[string]string{"volume": f.volume, "node": f.node, "group": f.group} {
		if name != "" {
			target, targets = kind, targets+1
		}
	}
	if len(args) == 1 {
		namespace, err := c.Namespace()
		if err != nil {
			return nil, err
		}
		target, targets = "claim", targets+1
		spec.PersistentVolumeClaim = &v1alpha1.ClaimReference{Namespace: namespace, Name: args[0]}
	}
	if targets != 1 {
		return nil, fmt.Errorf("%w: name exactly one of PVC, --volume, --node and --group", failure.ErrUsage)
	}
	if f.drain {
		spec.Mode = v1alpha1.FlushModeDrain
	}
	return &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{GenerateName: target + "-"}, Spec: spec}, nil
}

// Follow shows the progress of a CacheFlush until it is done.
func Follow(ctx context.Context, c *console.Console, api client.WithWatch, name string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	show := newProgress(c)
	return console.Poll(ctx, console.PollInterval/2, func() (bool, error) {
		f := &v1alpha1.CacheFlush{}
		err := api.Get(ctx, client.ObjectKey{Name: name}, f)
		switch {
		case apierrors.IsNotFound(err):
			return true, fmt.Errorf("CacheFlush %s was deleted before it was done", name)
		case err != nil:
			return false, err
		}
		show.show(f)
		condition := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.FlushConditionComplete)
		switch {
		case condition == nil:
		case condition.Status == metav1.ConditionTrue:
			c.Printf("%s\n", condition.Message)
			return true, nil
		case f.Status.Phase == v1alpha1.FlushFailed, condition.Reason == "VolumesFailed":
			return true, fmt.Errorf("not everything is in Ceph: %s", condition.Message)
		}
		return false, nil
	}, func() error { return NotFinished(ctx, name, timeout) })
}

// NotFinished is the error of one who has not waited until a CacheFlush was done.
func NotFinished(ctx context.Context, name string, timeout time.Duration) error {
	why := fmt.Errorf("%w after %s", failure.ErrTimeUp, timeout)
	if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		why = failure.ErrInterrupted
	}
	return fmt.Errorf("%w; CacheFlush %s goes on without you: kubectl escache status shows it, kubectl delete cacheflush %s cancels it",
		why, name, name)
}

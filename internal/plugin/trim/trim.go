// Package trim is kubectl escache trim: it has volumes give the space back to Ceph that is free in their filesystems.
package trim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/flush"
)

// options are the flags of trim.
type options struct {
	volume, claim string
	all, dryRun   bool
	timeout       time.Duration
	parallel      int
}

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var f options
	command := &cobra.Command{
		Use:   "trim --volume NAME | --claim NAMESPACE/NAME | --all",
		Short: "Give the free space of filesystems back to Ceph",
		Long: "Have a volume's filesystem discard its free space, and wait for that. A volume that no node has is trimmed by a host of\n" +
			"its group without a replica: it maps the image without the cache, mounts it where nobody sees it, and unmaps it. What is\n" +
			"dirty is written back first. A pod that wants the volume meanwhile waits some seconds and gets it; then the trim has\n" +
			"ended. The next attachment creates the cache again.\n\n" +
			"With cacheEngine: log also a volume that is attached is trimmed, on its host. With writecache it has to be detached.",
		Example: "  kubectl escache trim --claim shop/data-app-0\n  kubectl escache trim --all --dry-run",
		Args:    console.NoArgs,
		RunE:    func(command *cobra.Command, _ []string) error { return run(command.Context(), c, f) },
	}
	flags := command.Flags()
	flags.StringVar(&f.volume, "volume", "", "trim the CacheVolume of this name")
	flags.StringVar(&f.claim, "claim", "", "trim the volume of this claim, NAMESPACE/NAME")
	flags.BoolVar(&f.all, "all", false, "trim every volume that can be trimmed now, and say why the others cannot")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only say what would be trimmed")
	flags.DurationVar(&f.timeout, "timeout", time.Hour, "stop trimming a volume after this time")
	flags.IntVar(&f.parallel, "parallel", 2, "with --all: how many volumes to trim at once")
	return command
}

func (f options) check() error {
	targets := 0
	for _, named := range []bool{f.volume != "", f.claim != "", f.all} {
		if named {
			targets++
		}
	}
	switch {
	case targets != 1:
		return fmt.Errorf("%w: name exactly one of --volume, --claim and --all", failure.ErrUsage)
	case f.timeout < time.Second:
		return fmt.Errorf("%w: --timeout is at least 1s", failure.ErrUsage)
	case f.parallel < 1:
		return fmt.Errorf("%w: --parallel is at least 1", failure.ErrUsage)
	}
	return nil
}

func run(ctx context.Context, c *console.Console, f options) error {
	if err := f.check(); err != nil {
		return err
	}
	api, err := c.Connect()
	if err != nil {
		return err
	}
	return trim(ctx, c, api, f)
}

func trim(ctx context.Context, c *console.Console, api client.Client, f options) error {
	if f.all {
		return trimAll(ctx, c, api, f)
	}
	name := f.volume
	if f.claim != "" {
		namespace, claim, err := c.ClaimName(f.claim)
		if err != nil {
			return err
		}
		if name, err = claims.NameOf(ctx, api, namespace, claim); err != nil {
			return err
		}
	}
	v, err := claims.ReadVolume(ctx, api, name)
	if err != nil {
		return err
	}
	uses, err := claims.ReadUses(ctx, api)
	if err != nil {
		return err
	}
	if why := Obstacle(v, uses[v.Name].Block); why != "" {
		return fmt.Errorf("volume %s cannot be trimmed now: %s", v.Name, why)
	}
	if f.dryRun {
		c.Printf("%s would be trimmed\n", title(v))
		return nil
	}
	var said string
	err = flush.Ended(f.timeout, c.Now, func() (err error) {
		said, err = one(ctx, api, v, f.timeout)
		return err
	})
	if err == nil {
		c.Printf("%s\n", said)
	}
	return err
}

// trimAll trims what can be trimmed, a few at once. What cannot is no failure.
func trimAll(ctx context.Context, c *console.Console, api client.Client, f options) error {
	list := &v1alpha1.CacheVolumeList{}
	if err := api.List(ctx, list); err != nil {
		return err
	}
	uses, err := claims.ReadUses(ctx, api)
	if err != nil {
		return err
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.CacheVolume) int { return cmp.Compare(a.Name, b.Name) })
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		c.Printf(format+"\n", args...)
	}
	var failures []error
	trimmed, skipped := 0, 0
	var group errgroup.Group
	group.SetLimit(f.parallel)
	for i := range list.Items {
		v := &list.Items[i]
		if why := Obstacle(v, uses[v.Name].Block); why != "" {
			skipped++
			say("%s: skipped: %s", title(v), why)
			continue
		}
		if f.dryRun {
			trimmed++
			say("%s would be trimmed", title(v))
			continue
		}
		group.Go(func() error {
			said, err := one(ctx, api, v, f.timeout)
			if err == nil {
				say("%s", said)
			} else {
				say("%s: %v", title(v), err)
			}
			mu.Lock()
			defer mu.Unlock()
			if trimmed++; err != nil {
				failures = append(failures, err)
			}
			return nil // the others go on
		})
	}
	_ = group.Wait() // it returns no error
	done := "trimmed"
	if f.dryRun {
		done = "to be trimmed"
	}
	c.Printf("%d of %d volumes %s, %d skipped\n", trimmed-len(failures), len(list.Items), done, skipped)
	if len(failures) > 0 {
		return fmt.Errorf("%d volumes were not trimmed: %w", len(failures), errors.Join(failures...))
	}
	return nil
}

// Obstacle says why a volume cannot be trimmed now, and what helps; "" if nothing is known that is in the way. block:
// pods have it as a raw block device. csi-controller decides by what it finds then.
func Obstacle(v *v1alpha1.CacheVolume, block bool) string {
	s := &v.Status
	switch {
	case !v.DeletionTimestamp.IsZero(), s.Phase == v1alpha1.VolumeDeleting:
		return "it is being deleted"
	case v.BeingReleased():
		return "it is being released"
	case s.Phase == v1alpha1.VolumeConflict:
		return "nothing proves which of its copies counts; kubectl escache adopt --all says how to decide"
	case s.BeingMade(), s.ImageID == "":
		return "it was never attached, so it has no filesystem"
	case s.Move != nil:
		return "it is moving to group " + s.Move.Group + "; try again when it is there"
	case block:
		return "volumeMode Block: only its user knows what is free in it; with cacheEngine: log, run blkdiscard or fstrim in its pod"
	case s.AttachedNode != "" && !s.FlushAttached() && !s.UncachedAttached() && v.Spec.Engine() != v1alpha1.CacheEngineLog:
		return "it is attached to node " + s.AttachedNode + ", with cacheEngine: writecache, whose device takes no discards; " +
			"stop its pods, and trim it when it is detached"
	}
	return ""
}

// title is how a volume is named in a line.
func title(v *v1alpha1.CacheVolume) string {
	if claim := v.Annotations[v1alpha1.AnnotationClaim]; claim != "" {
		return v.Name + " (" + claim + ")"
	}
	return v.Name
}

// one trims a volume, and returns what there is to say of it.
func one(ctx context.Context, api client.Client, v *v1alpha1.CacheVolume, timeout time.Duration) (string, error) {
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{GenerateName: "trim-"}, Spec: v1alpha1.CacheFlushSpec{
		Volume: v.Name, Mode: v1alpha1.FlushModeTrim, Parallel: 1, TimeoutSeconds: int32(min(timeout/time.Second, 1<<30)),
	}}
	if err := api.Create(ctx, f); err != nil {
		if apierrors.IsInvalid(err) && strings.Contains(err.Error(), "spec.mode") {
			return "", fmt.Errorf("the CRD of CacheFlushes is older than this command: apply the chart's CRDs: %w", err)
		}
		return "", err
	}
	name := f.Name
	ctx, cancel := context.WithTimeout(ctx, timeout+flush.Grace)
	defer cancel()
	said := ""
	err := console.Poll(ctx, console.PollInterval/2, func() (bool, error) {
		err := api.Get(ctx, client.ObjectKey{Name: name}, f)
		switch {
		case apierrors.IsNotFound(err):
			return true, fmt.Errorf("CacheFlush %s was deleted before it was done", name)
		case err != nil:
			return false, err
		}
		var done bool
		said, done, err = result(v, f)
		return done, err
	}, func() error { return flush.NotFinished(ctx, name, timeout) })
	return said, err
}

// result is what a CacheFlush says of its only volume; done is false while it goes on.
func result(v *v1alpha1.CacheVolume, f *v1alpha1.CacheFlush) (said string, done bool, err error) {
	if len(f.Status.Volumes) > 0 {
		now := f.Status.Volumes[0]
		switch {
		case f.Status.Phase == v1alpha1.FlushFailed:
			return "", true, fmt.Errorf("volume %s was not trimmed to the end: %s%s", v.Name, now.Message, partly(now))
		case f.Status.Phase != v1alpha1.FlushComplete:
			return "", false, nil
		case now.TrimmedBytes == nil:
			return "", true, fmt.Errorf("csi-controller has not trimmed volume %s (%s); if it is older than this command, upgrade it",
				v.Name, cmp.Or(now.Message, "no reason given"))
		}
		said = fmt.Sprintf("%s: %s of free space discarded, on node %s", title(v), v1alpha1.HumanBytes(*now.TrimmedBytes), now.Node)
		return said, true, nil
	}
	if f.Status.Phase == v1alpha1.FlushFailed {
		return "", true, fmt.Errorf("volume %s is gone", v.Name)
	}
	return "", false, nil
}

func partly(now v1alpha1.FlushedVolume) string {
	if now.TrimmedBytes == nil || *now.TrimmedBytes == 0 {
		return ""
	}
	return "; " + v1alpha1.HumanBytes(*now.TrimmedBytes) + " were discarded"
}

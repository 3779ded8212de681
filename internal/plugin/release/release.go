// Package release is kubectl escache release: it gives a volume up, and says how others use its
// image.
package release

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// options are the flags of release.
type options struct {
	volume, claim  string
	dryRun, cancel bool
	timeout        time.Duration
	cephCSI        cephCSI
}

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var f options
	command := &cobra.Command{
		Use:   "release --volume VOLUME | --claim NAMESPACE/NAME",
		Short: "Give a volume up and leave its image, complete, in Ceph",
		Long: "Give a volume up and leave its image, complete, in Ceph, where ceph-csi or `rbd map` can use it. No data is copied.\n\n" +
			"No pod may use the volume. Its PersistentVolume gets the reclaim policy Retain; the cache is written back; the\n" +
			"replicas and the CacheVolume are removed. At the end it prints a PersistentVolume for ceph-csi, and what is left to do.\n" +
			"If the driver refuses, nothing is changed but the reclaim policy. The way back is kubectl escache adopt.",
		Example: "  kubectl escache release --claim shop/data-app-0 --dry-run\n" +
			"  kubectl escache release --volume pvc-0a1b",
		Args: console.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runRelease(command.Context(), c, api, f)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.volume, "volume", "", "the CacheVolume")
	flags.StringVar(&f.claim, "claim", "", "the PersistentVolumeClaim, NAMESPACE/NAME")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only check what can be checked here, and print the PersistentVolume for ceph-csi")
	flags.BoolVar(&f.cancel, "cancel", false, "keep the volume: cancel a release that still waits")
	flags.DurationVar(&f.timeout, "timeout", 5*time.Minute, "stop waiting after this time; the release goes on")
	f.cephCSI.bind(flags)
	return command
}

func runRelease(ctx context.Context, c *console.Console, api client.Client, f options) error {
	name, err := volumeName(ctx, c, api, f.volume, f.claim)
	if err != nil {
		return err
	}
	v, err := claims.ReadVolume(ctx, api, name)
	if errors.Is(err, claims.ErrNoVolume) {
		return gone(ctx, api, name, err)
	}
	if err != nil {
		return err
	}
	if f.cancel {
		return cancelRelease(ctx, c, api, v)
	}
	pvs, err := volumesOf(ctx, api, v.Name)
	if err != nil {
		return err
	}
	if err := unused(ctx, api, v, pvs); err != nil {
		return err
	}
	if f.dryRun {
		c.Printf("# Dry run: nothing was released, and nothing was changed.\n%s", onlyAfter)
		printReleased(c, v, pvs, f.cephCSI)
		return nil
	}
	for i := range pvs {
		if err := claims.Retain(ctx, api, &pvs[i]); err != nil {
			return err
		}
	}
	v, asked, err := setRelease(ctx, api, v.Name, true)
	if err != nil {
		return err
	}
	if err := awaitRelease(ctx, c, api, v, asked, f.timeout); err != nil {
		if !errors.Is(err, errRefused) { // nobody can print it later: the driver goes on, and removes the record
			c.Printf("# Not released yet, but asked for. CacheVolume %s is gone when it is released.\n%s", v.Name, onlyAfter)
			printReleased(c, v, pvs, f.cephCSI)
		}
		return err
	}
	c.Printf("# released: image %s/%s of Ceph cluster %s is complete, and belongs to no volume any more\n",
		v.Spec.Pool, v.Spec.Image, v.Spec.ClusterID)
	c.Printf("# Left to do:\n")
	printReleased(c, v, pvs, f.cephCSI)
	return nil
}

// onlyAfter stands above what printReleased prints where the volume is not released.
const onlyAfter = "# What follows is only for after the release. Before it, the deletion of the claim can delete the image,\n" +
	"# and the image can lack what the cache has.\n"

// volumeName returns the name of the volume that exactly one of the two names.
func volumeName(ctx context.Context, c *console.Console, api client.Reader, volume, claim string) (string, error) {
	if (volume == "") == (claim == "") {
		return "", fmt.Errorf("%w: name exactly one of --volume and --claim", failure.ErrUsage)
	}
	if volume != "" {
		return volume, nil
	}
	namespace, name, err := c.ClaimName(claim)
	if err != nil {
		return "", err
	}
	return claims.NameOf(ctx, api, namespace, name)
}

// gone says how to go on where an earlier command may have asked for the release, and did not wait to its end. Only the
// image proves that: the record may also be lost.
func gone(ctx context.Context, api client.Reader, volume string, noVolume error) error {
	pvs, err := volumesOf(ctx, api, volume)
	if err != nil {
		return err
	}
	var left []string
	for i := range pvs {
		if pvs[i].Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain { // as a release leaves it
			left = append(left, deletions(&pvs[i])...)
		}
	}
	if len(left) == 0 {
		return noVolume
	}
	return fmt.Errorf("%w.\nAn earlier command may have released it. Then its image has the metadata escache.io/released, "+
		"with all that was on record: rbd image-meta list POOL/IMAGE. That command has printed pool and image. For an hour the Event "+
		"Released has them, too: kubectl get events -A --field-selector involvedObject.name=%s\n"+
		"Only if it is released, this is left to do:\n  %s\n"+
		"The earlier command has also printed the PersistentVolume for ceph-csi. status.leftFences of the NodeGroup has the clients "+
		"that are still on Ceph's blocklist", noVolume, volume, strings.Join(left, "\n  "))
}

// volumesOf returns the PersistentVolumes that name a volume of this driver.
func volumesOf(ctx context.Context, api client.Reader, volume string) ([]corev1.PersistentVolume, error) {
	all := &corev1.PersistentVolumeList{}
	if err := api.List(ctx, all); err != nil {
		return nil, err
	}
	var out []corev1.PersistentVolume
	for _, pv := range all.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == v1alpha1.DriverName && pv.Spec.CSI.VolumeHandle == volume {
			out = append(out, pv)
		}
	}
	return out, nil
}

// unused refuses a volume that a pod uses, or is about to use.
func unused(ctx context.Context, api client.Reader, v *v1alpha1.CacheVolume, pvs []corev1.PersistentVolume) error {
	for _, pv := range pvs {
		if err := claims.WithoutPods(ctx, api, pv.Spec.ClaimRef); err != nil {
			return err
		}
	}
	if node := v.Status.AttachedNode; node != "" && !v.Status.FlushAttached() {
		return fmt.Errorf("volume %s is attached to node %s; stop the pods that use it, and wait until "+
			"kubectl escache status shows no host for it",
			v.Name, node)
	}
	return nil
}

// setRelease asks for a release, or calls it off while nothing was given up yet. It reports whether that is a change.
func setRelease(ctx context.Context, api client.Client, volume string, release bool) (v *v1alpha1.CacheVolume, changed bool, err error) {
	v = &v1alpha1.CacheVolume{}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := api.Get(ctx, client.ObjectKey{Name: volume}, v); err != nil {
			return err
		}
		if !release && v.Status.Phase == v1alpha1.VolumeReleasing {
			return errReleasing
		}
		changed = v.Spec.Release != release
		before := v.DeepCopy()
		v.Spec.Release = release
		return api.Patch(ctx, v, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	return v, changed, err
}

var errRefused = errors.New("refused, nothing was changed but the reclaim policy of its PersistentVolume, which is Retain")

var errReleasing = errors.New("the volume is being released already, and there is no way back; " +
	"kubectl escache adopt takes its image in again")

func cancelRelease(ctx context.Context, c *console.Console, api client.Client, v *v1alpha1.CacheVolume) error {
	if !v.Spec.Release {
		return fmt.Errorf("nobody has asked for a release of volume %s", v.Name)
	}
	if _, _, err := setRelease(ctx, api, v.Name, false); err != nil {
		return err
	}
	c.Printf("volume %s stays\n", v.Name)
	return nil
}

// awaitRelease waits until the volume is gone, and keeps what was last on record in v. It calls the release off if the
// driver refuses it. Where the request was there before (asked is false), the refusal may be from before something has
// changed that it speaks of. csi-controller looks every 5 s.
func awaitRelease(
	ctx context.Context, c *console.Console, api client.Client, v *v1alpha1.CacheVolume, asked bool, timeout time.Duration,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	since, generation := c.Now(), v.Generation
	waitsFor := "csi-controller has not begun"
	return console.Poll(ctx, console.PollInterval/4, func() (bool, error) {
		now := &v1alpha1.CacheVolume{}
		err := api.Get(ctx, client.ObjectKeyFromObject(v), now)
		if err != nil {
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		}
		*v = *now
		condition := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionReleased)
		if condition == nil || condition.ObservedGeneration < generation {
			return false, nil
		}
		waitsFor = condition.Message
		judged := asked || c.Now().Sub(since) > 12*time.Second
		if condition.Reason == v1alpha1.ReasonReleaseRefused && v.Status.Phase != v1alpha1.VolumeReleasing && judged {
			err = refusedRelease(ctx, api, v.Name, condition.Message)
			return err != nil, err
		}
		return false, nil
	}, func() error {
		return fmt.Errorf("%w: volume %s waits to be released (%s); the driver keeps trying. To keep the volume: "+
			"kubectl escache release --cancel --volume %s", failure.ErrTimeUp, v.Name, waitsFor, v.Name)
	})
}

// refusedRelease calls a refused release off. It returns no error if the release goes on.
func refusedRelease(ctx context.Context, api client.Client, volume, why string) error {
	switch _, _, err := setRelease(ctx, api, volume, false); {
	case err == nil:
		return fmt.Errorf("%w: %s", errRefused, why)
	case errors.Is(err, errReleasing), apierrors.IsNotFound(err):
		return nil // what it waited for has passed meanwhile
	default:
		return fmt.Errorf("refused: %s; and the request could not be withdrawn: %w", why, err)
	}
}

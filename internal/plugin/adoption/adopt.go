// Package adoption is kubectl escache adopt: it makes volumes of images that exist, and re-creates
// lost records.
package adoption

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// options are the flags of adopt.
type options struct {
	pool, image, persistentVolume         string
	clusterID, class, group, claim        string
	fsType, mode                          string
	formatIfBlank, apply, fsTypeWasChosen bool
	timeout                               time.Duration

	// Of --all.
	all, dryRun                  bool
	fromCluster, useCopy, output string
}

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var f options
	command := &cobra.Command{
		Use:   "adopt --pool POOL --image IMAGE | --persistent-volume PV | --all",
		Short: "Make a volume of an RBD image that exists, without copying it, or re-create lost records",
		Long: "Make a volume of an RBD image that exists, without copying it: one made with `rbd`, by ceph-csi, by OpenStack\n" +
			"Cinder, or one that was released. csi-controller checks the image and refuses one that is in use, a clone,\n" +
			"encrypted, of another cluster, or unfit.\n\n" +
			"Without --apply it only checks, and prints what it would make. The image is never formatted, even if it reads as\n" +
			"zeros, unless you ask for it. The new PersistentVolume has the reclaim policy Retain. The way back is kubectl\n" +
			"escache release.\n\n" +
			"--all re-creates the CacheVolumes that Kubernetes has lost, of images that this driver made, with their\n" +
			"PersistentVolumes and claims. It takes from the images' metadata which volumes they are, and from the hosts which\n" +
			"copy is current and how much is dirty. A volume of which a host does not answer waits; one whose copies differ is\n" +
			"stopped until you choose with --use-copy. Records that a restore of etcd has set back are brought up to date.\n" +
			"See docs/disaster-recovery.md and docs/restore-etcd.md first.",
		Example: "  kubectl escache adopt --pool rbd --image volume-1f2e --storage-class escache --claim shop/data --apply\n" +
			"  kubectl escache adopt --persistent-volume pvc-0a1b --storage-class escache\n" +
			"  kubectl escache adopt --all --dry-run",
		Args: console.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			f.fsTypeWasChosen = command.Flags().Changed("fs-type")
			if err := f.validate(); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if f.all {
				return runAdoptAll(command.Context(), c, api, f)
			}
			return runAdopt(command.Context(), c, api, f)
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.pool, "pool", "", "the image's pool")
	flags.StringVar(&f.image, "image", "", "the image")
	flags.StringVar(&f.persistentVolume, "persistent-volume", "", "a PersistentVolume of ceph-csi, whose image it is")
	flags.StringVar(&f.clusterID, "cluster-id", "",
		"the Ceph cluster (default: that of --storage-class, or of all StorageClasses of this driver)")
	flags.StringVar(&f.class, "storage-class", "", "the StorageClass that the claim names; its parameters for the cache are used")
	flags.StringVar(&f.group, "group", "", "place it in this NodeGroup")
	flags.StringVar(&f.claim, "claim", "", "make this PersistentVolumeClaim, NAMESPACE/NAME, bound to the volume")
	flags.StringVar(&f.fsType, "fs-type", "ext4", "the filesystem on the image: ext4 or xfs")
	flags.StringVar(&f.mode, "volume-mode", "Filesystem",
		"Filesystem, or Block for an image without a filesystem of its own, such as a machine's disk")
	flags.BoolVar(&f.formatIfBlank, "format-if-blank", false, "make a filesystem if the image reads as zeros")
	flags.BoolVar(&f.apply, "apply", false, "do it; without, only check and print")
	flags.DurationVar(&f.timeout, "timeout", 2*time.Minute, "stop waiting after this time")
	flags.BoolVar(&f.all, "all", false,
		"re-create lost records, and bring up to date those that were set back: of --pool, or of the "+
			"pools of all StorageClasses of this driver; of one image with --image")
	flags.BoolVar(&f.dryRun, "dry-run", false, "only check and print, as without --apply")
	flags.StringVar(&f.fromCluster, "from-kubernetes-cluster", "",
		"with --all, also take over the images that are marked with this UID, of a Kubernetes cluster that is gone for good")
	flags.StringVar(&f.useCopy, "use-copy", "",
		"with --all and --image, decide that the copy on this node counts, where nothing proves which one does; "+
			"what only other copies have is lost")
	flags.StringVarP(&f.output, "output", "o", "", "with --all: table or json")
	return command
}

func (f *options) validate() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{failure.ErrUsage}, args...)...)
	}
	switch {
	case f.apply && f.dryRun:
		return refuse("--apply and --dry-run exclude each other")
	case f.all:
		return f.validateAll(refuse)
	case f.fromCluster+f.useCopy+f.output != "":
		return refuse("--from-kubernetes-cluster, --use-copy and --output are for --all")
	case (f.pool != "" && f.image != "") == (f.persistentVolume != "") || (f.pool == "") != (f.image == ""):
		return refuse("name either --pool and --image or --persistent-volume")
	case strings.ContainsAny(f.pool+f.image, "/@"):
		return refuse("pool %q and image %q: a name with / or @ is not one of a pool or an image; "+
			"images in RADOS namespaces cannot be adopted", f.pool, f.image)
	case f.mode != "Filesystem" && f.mode != "Block":
		return refuse("--volume-mode %s is none of Filesystem and Block", f.mode)
	case f.fsType != "ext4" && f.fsType != "xfs":
		return refuse("--fs-type %s is none of ext4 and xfs", f.fsType)
	}
	return nil
}

func runAdopt(ctx context.Context, c *console.Console, api client.Client, f options) error {
	t, err := newTwin(ctx, c, api, f)
	if err != nil {
		return err
	}
	left, err := t.leftRequest(ctx, api, f)
	if err != nil {
		return err
	}
	resumed := false
	if left == nil {
		if resumed, err = t.resume(ctx, c, api, f); err != nil {
			return err
		}
	}
	if left == nil && !resumed {
		// The image is checked before anything is changed.
		done, err := ask(ctx, api, t.request(f, true), f.timeout)
		if err != nil {
			return err
		}
		t.sizeBytes = done.SizeBytes
		if !f.apply {
			c.Printf("# Image %s/%s, %s, can be adopted, with a cache of %s on each of two hosts. With --apply this is made:\n",
				t.pool, t.image, v1alpha1.HumanBytes(t.sizeBytes), v1alpha1.HumanBytes(done.CacheBytes))
		}
	}
	if !f.apply {
		return printTwin(c, t)
	}
	if t.source != nil {
		if err := claims.Retain(ctx, api, t.source); err != nil {
			return err
		}
	}
	if resumed {
		err = t.forget(ctx, api)
	} else {
		err = t.adopt(ctx, api, f, left)
	}
	if err != nil {
		return err
	}
	return applyTwin(ctx, c, api, t)
}

// adopt has csi-controller adopt the image. If an earlier command has left its request, that one is waited for.
func (t *twin) adopt(ctx context.Context, api client.Client, f options, left *v1alpha1.CacheAdoption) error {
	request := left
	if request == nil {
		request = t.request(f, false)
		if err := api.Create(ctx, request); err != nil {
			return err
		}
	}
	if err := awaitAdoption(ctx, api, request, f.timeout); err != nil {
		return err
	}
	t.volume, t.placed, t.sizeBytes = request.Status.Volume, request.Status.Group, request.Status.SizeBytes
	return nil
}

// ask has csi-controller carry out a request, and returns the result.
func ask(
	ctx context.Context, api client.Client, request *v1alpha1.CacheAdoption, timeout time.Duration,
) (v1alpha1.CacheAdoptionStatus, error) {
	if err := api.Create(ctx, request); err != nil {
		return request.Status, err
	}
	err := awaitAdoption(ctx, api, request, timeout)
	return request.Status, err
}

// request returns what csi-controller is asked for.
func (t *twin) request(f options, dryRun bool) *v1alpha1.CacheAdoption {
	a := &v1alpha1.CacheAdoption{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "adopt-"},
		Spec: v1alpha1.CacheAdoptionSpec{
			ClusterID: t.clusterID, Pool: t.pool, Image: t.image, StorageClass: f.class, Group: f.group,
			FormatIfBlank: f.formatIfBlank, DryRun: dryRun,
		},
	}
	if t.claim != "" {
		a.Spec.Claim = &v1alpha1.ClaimReference{Namespace: t.namespace, Name: t.claim}
	}
	return a
}

// awaitAdoption waits until the request's phase is final, and removes the request.
func awaitAdoption(ctx context.Context, api client.Client, request *v1alpha1.CacheAdoption, timeout time.Duration) error {
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return console.Poll(waiting, console.PollInterval/4, func() (bool, error) {
		if err := api.Get(waiting, client.ObjectKeyFromObject(request), request); err != nil {
			return false, err
		}
		switch request.Status.Phase { //nolint:exhaustive // all others are pending
		case v1alpha1.AdoptionDone, v1alpha1.AdoptionChecked:
			return true, client.IgnoreNotFound(api.Delete(ctx, request))
		case v1alpha1.AdoptionRefused:
			_ = api.Delete(ctx, request)
			return true, fmt.Errorf("refused, nothing was changed: %s", request.Status.Message)
		default:
			return false, nil
		}
	}, func() error {
		return fmt.Errorf("%w: CacheAdoption %s is pending (%s); the driver keeps trying. To withdraw it: "+
			"kubectl delete cacheadoption %s",
			failure.ErrTimeUp, request.Name, request.Status.Message, request.Name)
	})
}

// findCluster returns the Ceph cluster that the flags or the StorageClasses name.
func findCluster(ctx context.Context, api client.Reader, f options) (string, error) {
	if f.class != "" {
		class := &storagev1.StorageClass{}
		err := api.Get(ctx, client.ObjectKey{Name: f.class}, class)
		switch {
		case apierrors.IsNotFound(err):
			return "", fmt.Errorf("there is no StorageClass %s", f.class)
		case err != nil:
			return "", err
		case class.Provisioner != v1alpha1.DriverName:
			return "", fmt.Errorf("StorageClass %s is of driver %s, not of %s", f.class, class.Provisioner, v1alpha1.DriverName)
		case f.clusterID == "":
			return class.Parameters["clusterID"], nil
		}
	}
	if f.clusterID != "" {
		return f.clusterID, nil
	}
	all := &storagev1.StorageClassList{}
	if err := api.List(ctx, all); err != nil {
		return "", err
	}
	var ids []string
	for _, class := range all.Items {
		if id := class.Parameters["clusterID"]; class.Provisioner == v1alpha1.DriverName && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) != 1 {
		return "", fmt.Errorf("%w: the StorageClasses of this driver name %d Ceph clusters; choose one with "+
			"--cluster-id or --storage-class", failure.ErrUsage, len(ids))
	}
	return ids[0], nil
}
